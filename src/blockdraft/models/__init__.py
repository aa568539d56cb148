"""Networks, each written once against `blockdraft.ops.protocol.Ops`."""
