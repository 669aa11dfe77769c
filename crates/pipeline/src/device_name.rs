use burn::{backend::DispatchDevice, tensor::Device};

/// What a device is called: `cpu` and `cuda:0` as in a configuration; wgpu's, which are listed anew by
/// every process, by their kind.
pub fn device_name(device: &Device) -> String {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Flex(_) => "cpu".to_owned(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(burn::backend::CubeDevice::Cuda(device)) => {
            format!("cuda:{}", device.index)
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::device_name;

    #[test]
    fn the_cpu_is_called_as_in_a_configuration_with_and_without_autodiff() {
        assert_eq!(device_name(&Device::flex()), "cpu");
        assert_eq!(device_name(&Device::flex().autodiff()), "cpu");
    }
}
