from rosettaformer.pytest_plugin import parametrize_with_cases


@parametrize_with_cases("port.py", components=["layer_norm", "pool"], dtypes=["float32"])
def test_port(case):
    case.judge()
