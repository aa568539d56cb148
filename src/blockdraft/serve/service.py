"""What every endpoint works with: the model, the engine thread, settings and counters."""

from dataclasses import replace

from blockdraft.serve.engine_thread import EngineThread
from blockdraft.serve.failure import ApiError
from blockdraft.serve.metrics import Metrics
from blockdraft.serve.settings import ServeSettings
from blockdraft.session import AnswerSettings, Session
from blockdraft.session.prompt import TextCodec
from blockdraft.session.session import drawn_seed
from blockdraft.tokenizer import ChatTemplate

__all__ = ["Service"]


class Service:
    """One served model.

    Attributes:
        session: Its session; only what is safe from any thread may be called.
        engine: The thread that runs it.
        settings: Settings of the server.
        metrics: What was counted.
    """

    def __init__(self, session: Session, settings: ServeSettings) -> None:
        session.engine.limit_running(settings.max_running)
        self.session = session
        self.settings = settings
        self.metrics = Metrics()
        self.engine = EngineThread(
            session,
            max_open=settings.max_running + settings.max_waiting,
            on_result=self.metrics.count,
        )

    @property
    def codec(self) -> TextCodec:
        """Text to ids and back."""
        return self.session.tokenizer

    @property
    def drafter_name(self) -> str | None:
        """What drafts; None where nothing does."""
        drafter = self.session.engine.drafter
        return None if drafter is None else drafter.type_name

    @property
    def template_source(self) -> str | None:
        """The model's chat template; None for a base model."""
        template = self.session.tokenizer.chat_template
        return template.source if isinstance(template, ChatTemplate) else None

    def check_model(self, name: str | None) -> None:
        """Refuse requests to another model.

        Raises:
            ApiError: ``name`` is not the served model's.
        """
        ours = self.settings.model_id
        if name is not None and name != ours:
            message = f"there is no model {name[:80]!r} here; this server has {ours!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def with_seed(self, settings: AnswerSettings) -> AnswerSettings:
        """The settings with a seed: all answers of a request share it."""
        if settings.params.seed is not None:
            return settings
        return replace(settings, params=replace(settings.params, seed=drawn_seed()))
