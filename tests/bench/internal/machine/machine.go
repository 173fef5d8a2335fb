// Package machine starts processes on cores of their own and reads what they use.
package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"fairlead.dev/tests/internal/process"
)

// Cores divides the machine: the server under test has one core, the clients have all others.
type Cores struct{ Server, Clients unix.CPUSet }

// Divide takes the first allowed core for servers and keeps the calling process on the others.
func Divide() (*Cores, error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("cores allowed: %w", err)
	}
	if all.Count() < 2 {
		return nil, fmt.Errorf("the benchmark needs 2 cores, one for the server and one for the clients; %d is allowed", all.Count())
	}
	c := &Cores{}
	for cpu := range 1024 {
		switch {
		case !all.IsSet(cpu):
		case c.Server.Count() == 0:
			c.Server.Set(cpu)
		default:
			c.Clients.Set(cpu)
		}
	}
	runtime.GOMAXPROCS(c.Clients.Count())
	err := threads(func(tid int) error { return unix.SchedSetaffinity(tid, &c.Clients) })
	if err != nil {
		return nil, fmt.Errorf("keep off the server's core: %w", err)
	}
	return c, nil
}

// Realtime makes the calling process and what it starts from now on run before all ordinary programs of the machine,
// which then disturb no measurement. It needs CAP_SYS_NICE.
func Realtime() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	if err := threads(func(tid int) error { return unix.SchedSetAttr(tid, &attr, 0) }); err != nil {
		return fmt.Errorf("real-time priority: %w", err)
	}
	return nil
}

// threads does something to every thread of the calling process; later ones inherit it.
func threads(do func(tid int) error) error {
	// Twice: a thread may start another one while the list is read.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			if err := do(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("thread %d: %w", tid, err)
			}
		}
	}
	return nil
}

// Process is a started program.
type Process struct{ *process.Process }

// Start runs a program on the given cores, with as many Go threads.
func Start(p process.Program, on *unix.CPUSet) (*Process, error) {
	p.Env = append(slices.Clone(p.Env), fmt.Sprintf("GOMAXPROCS=%d", on.Count()))
	// A child has the affinity of the thread that forks it.
	started, err := process.Start(p, func() error { return unix.SchedSetaffinity(0, on) })
	if err != nil {
		return nil, err
	}
	return &Process{started}, nil
}

// StopWithin is how long a process may take from SIGTERM to its end, until it is killed.
const StopWithin = 5 * time.Second

// Stop ends the process, by force if it does not end by itself.
func (p *Process) Stop() {
	_ = p.Process.Stop(StopWithin) // the figures are there
}

// CPU is the user and system time that the process has used, all its threads together.
func (p *Process) CPU() time.Duration {
	var ts unix.Timespec
	// The clock id of another process's CPU time, see clock_getcpuclockid(3).
	id := int32(^p.PID())<<3 | 2 //nolint:gosec // a pid fits
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// OwnCPU is the user and system time that the calling process has used.
func OwnCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// Memory is what the process holds, in bytes.
type Memory struct {
	// Resident is VmRSS, Peak VmHWM, Anonymous the part of Resident that is no file's.
	Resident, Peak, Anonymous int64
}

// Memory is what the process holds now.
func (p *Process) Memory() (Memory, error) { return MemoryOf(p.PID()) }

// MemoryOf is what the process with this pid holds now.
func MemoryOf(pid int) (Memory, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return Memory{}, err
	}
	status, err := process.NewStatus()
	return Memory{Resident: int64(status.VmRSS), Peak: int64(status.VmHWM), Anonymous: int64(status.RssAnon)}, err
}
