//! The device that a process computes on: what `[model] device` stands for on this machine.
//!
//! libtorch's CUDA library is loaded before the first tensor, and only if a setting may need it and the
//! driver offers a GPU. Under a launcher, every process of a machine gets a GPU of its own.

use std::sync::OnceLock;

use parallel::{LocalRank, runtime};
use tch::Device;
use text::number::counted;

use crate::config::{ConfigError, DeviceSetting};
use crate::console::print_stderr;

/// Why libtorch has no GPU of NVIDIA, once [`load`] has looked.
static NO_CUDA: OnceLock<String> = OnceLock::new();

/// Loads libtorch's CUDA library if one of the settings may need it. Call it before the first tensor.
pub(crate) fn load(settings: impl IntoIterator<Item = DeviceSetting>) {
    let settings: Vec<DeviceSetting> = settings.into_iter().collect();
    if !settings.iter().any(|setting| matches!(setting, DeviceSetting::Auto | DeviceSetting::Cuda(_))) {
        return;
    }
    let problem = match runtime::count_gpus() {
        Err(problem) => problem,
        Ok(0) => "the driver offers no GPU".to_owned(),
        Ok(count) => {
            let problem = match runtime::load_cuda() {
                Ok(()) if tch::Cuda::device_count() > 0 => return,
                Ok(()) => {
                    "libtorch sees no GPU: the driver may be too old for CUDA 13 (nvidia-smi)".to_owned()
                }
                Err(error) => format!("{error}: get libtorch for GPUs with `make libtorch DEVICE=cuda`"),
            };
            // Without this line, a GPU that stays idle would go unnoticed.
            if settings.contains(&DeviceSetting::Auto) {
                let unused = counted(count as u64, "GPU");
                print_stderr(&format!("hint: unused on this machine: {unused}: {problem}"));
            }
            problem
        }
    };
    let _ = NO_CUDA.set(problem);
}

/// Why no GPU of NVIDIA can be used, if [`load`] has found a reason.
pub(crate) fn cuda_problem() -> Option<&'static str> {
    NO_CUDA.get().map(String::as_str)
}

/// Whether a setting stands for a GPU on this machine.
pub(crate) fn is_gpu(setting: DeviceSetting) -> bool {
    match setting {
        DeviceSetting::Cpu => false,
        DeviceSetting::Auto => tch::Cuda::device_count() > 0,
        DeviceSetting::Cuda(_) | DeviceSetting::Mps => true,
    }
}

/// Returns the device that a setting stands for in this process.
pub(crate) fn resolve(setting: DeviceSetting, local: LocalRank) -> Result<Device, ConfigError> {
    let gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    let device = choose(setting, gpus, local)
        .map_err(|problem| ConfigError::Device { setting: setting.to_string(), problem })?;
    if device == Device::Mps && !tch::utils::has_mps() {
        let problem = "this libtorch supports no GPU of Apple: use cpu, cuda or auto".to_owned();
        return Err(ConfigError::Device { setting: setting.to_string(), problem });
    }
    Ok(device)
}

/// Chooses the device of a process among the `gpus` GPUs that it sees. If the launcher shows every process
/// one GPU of its own, as SLURM may do, each sees its GPU as number 0.
fn choose(setting: DeviceSetting, gpus: usize, local: LocalRank) -> Result<Device, String> {
    match setting {
        DeviceSetting::Cpu => Ok(Device::Cpu),
        DeviceSetting::Mps => Ok(Device::Mps),
        DeviceSetting::Auto if gpus == 0 => Ok(Device::Cpu),
        DeviceSetting::Cuda(_) if gpus == 0 => {
            Err(format!("{}: use cpu or auto", cuda_problem().unwrap_or("there is no GPU")))
        }
        DeviceSetting::Cuda(Some(index)) if local.size > 1 && !local.can_share_gpus => Err(format!(
            "{} processes on this machine share GPU {index} only with [parallel] transport = \"shared\" or \"gloo\": \
             set it, or use cuda, which gives each process its own",
            local.size
        )),
        DeviceSetting::Cuda(Some(index)) if index >= gpus => {
            Err(format!("this machine has {}, numbered from 0", counted(gpus as u64, "GPU")))
        }
        DeviceSetting::Cuda(Some(index)) => Ok(Device::Cuda(index)),
        DeviceSetting::Auto | DeviceSetting::Cuda(None) => {
            if local.size <= gpus {
                Ok(Device::Cuda(local.rank))
            } else if gpus == 1 && local.has_own_gpus {
                Ok(Device::Cuda(0))
            } else {
                Err(format!(
                    "{} processes on this machine need as many GPUs, and it has {gpus}: start {}, or use cpu",
                    local.size,
                    counted(gpus as u64, "process")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parallel::Transport;

    use super::*;

    #[test]
    fn every_process_of_a_machine_gets_a_gpu_of_its_own() {
        let of = |setting: &str, gpus, has_own_gpus, rank, size| {
            let local = LocalRank { rank, size, has_own_gpus, can_share_gpus: false };
            choose(setting.parse().unwrap(), gpus, local)
        };
        assert_eq!(of("auto", 0, false, 0, 4), Ok(Device::Cpu));
        assert_eq!(of("auto", 8, false, 3, 4), Ok(Device::Cuda(3)));
        assert_eq!(of("cuda", 4, true, 3, 4), Ok(Device::Cuda(3)));
        assert_eq!(of("cuda", 1, true, 3, 4), Ok(Device::Cuda(0)));
        assert_eq!(of("cuda:1", 2, false, 0, 1), Ok(Device::Cuda(1)));
        assert_eq!(of("cpu", 8, false, 3, 4), Ok(Device::Cpu));
        assert!(
            of("cuda", 2, false, 3, 4).unwrap_err().contains("4 processes on this machine need as many GPUs")
        );
        assert!(of("auto", 1, false, 1, 2).unwrap_err().contains("start 1 process, or use cpu"));
        assert!(of("cuda:0", 2, false, 0, 2).unwrap_err().contains("share GPU 0 only with"));
        assert!(of("cuda:2", 2, false, 0, 1).unwrap_err().contains("2 GPUs, numbered from 0"));
        assert!(of("cuda", 0, false, 0, 1).unwrap_err().contains("use cpu or auto"));

        let through_the_host = LocalRank::last_of(2, Transport::Gloo);
        let shared = |setting: &str| choose(setting.parse().unwrap(), 1, through_the_host);
        assert_eq!(shared("cuda:0"), Ok(Device::Cuda(0)));
        assert!(shared("cuda:1").unwrap_err().contains("1 GPU, numbered from 0"));
        assert!(shared("cuda").unwrap_err().contains("need as many GPUs"));
    }
}
