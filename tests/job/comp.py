"""Components used by the recorded command lines."""

import relight.job as specs


def types(
    b: bool, l: list[str] = [], d: dict[str, int] | None = None, oi: int | None = None
) -> specs.AppDef:
    role = specs.Role(
        name="r",
        image="",
        entrypoint="echo",
        args=[str(b), str([int(each) for each in l]), str(d), repr(oi)],
        resource=specs.Resource(cpu=1, gpu=0, memMB=1),
    )
    return specs.AppDef(name="a", roles=[role])


def untyped(n) -> specs.AppDef:
    return specs.AppDef(name=str(n), roles=[])
