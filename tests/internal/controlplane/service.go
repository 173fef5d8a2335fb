package controlplane

import (
	"context"
	"time"

	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// ReadyWithin is how long a service may take from its start until it is ready; config-watcher reads the whole mesh
// first.
const ReadyWithin = 2 * time.Minute

// Service is one of the processes of a control plane, which may run. It is not safe for concurrent use.
type Service struct {
	// Name is unique, as "config-watcher" and "xds-server/1".
	Name string
	Ports

	plane   *Plane
	program process.Program
	process *process.Process
}

// Process is the running process, or the one that ended unasked; nil before Start and after Stop or Kill.
func (s *Service) Process() *process.Process { return s.process }

// Running tells whether the service runs.
func (s *Service) Running() bool { return s.process != nil && s.process.Running() }

// Add adds arguments, for the next Start.
func (s *Service) Add(args ...string) { s.program.Args = append(s.program.Args, args...) }

// Start starts the service, if it does not run, and does not wait for it.
func (s *Service) Start() error {
	if s.Running() {
		return nil
	}
	var err error
	s.process, err = s.plane.Start(s.program)
	return err
}

// Stop ends the service, if it runs, as asked by SIGTERM. The error tells that it did not end well.
func (s *Service) Stop(within time.Duration) error {
	if s.process == nil {
		return nil
	}
	err := s.process.Stop(within)
	s.process = nil
	return err
}

// Kill ends the service by SIGKILL.
func (s *Service) Kill() {
	if s.process != nil {
		s.process.Kill()
	}
	s.process = nil
}

// WaitReady waits until the service, which was started, says that it is ready.
func (s *Service) WaitReady(ctx context.Context) error {
	client := probe.Client(s.plane.Dial)
	return s.process.Until(ctx, ReadyWithin, func() error { return probe.Ready(ctx, client, "http://"+s.Ops+"/readyz") })
}
