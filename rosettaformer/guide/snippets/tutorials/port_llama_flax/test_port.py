from rosettaformer.pytest_plugin import parametrize_with_cases


@parametrize_with_cases("port.py", components=["rms_norm", "transformer"], dtypes=["float32"])
def test_port(case):
    case.judge()
