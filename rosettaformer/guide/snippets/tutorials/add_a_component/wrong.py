dtypes = ("float64", "float32")


def layer_scale(case):
    return (case.inputs["x_btd"] + case.inputs["y_btd"]) * case.parameters["scale"]
