package testkit

import "github.com/prometheus/procfs"

// ProcessStatus is what the kernel shows of a process. Its memory, in bytes, is 0 if the process has ended and was not
// waited for.
func ProcessStatus(pid int) (procfs.ProcStatus, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return process.NewStatus()
}
