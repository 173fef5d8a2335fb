// Package services runs the real services for benchmarks: the ca beside the clients, config-watchers and xds-servers on
// the server's processor, and certificates from the ca for whoever else takes part.
package services

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/process"
)

// Services is a control plane on loopback.
type Services struct {
	*controlplane.Plane

	ctx     context.Context
	stop    context.CancelFunc
	renewal sync.WaitGroup
	// on is where ConfigWatcherOn starts a process; nil at other times.
	on *unix.CPUSet
}

// Start runs the ca of a directory of binaries, with all state in dir.
func Start(ctx context.Context, bin, dir string, cores *machine.Cores) (*Services, error) {
	at, err := ports()
	if err != nil {
		return nil, err
	}
	s := &Services{}
	if s.Plane, err = controlplane.New(controlplane.Config{
		Dir: dir, Binaries: binaries.Set{Dir: bin}, CAPorts: at, Args: []string{"--log-level", "warn"},
		Start: func(p process.Program) (*process.Process, error) {
			on := &cores.Server
			switch {
			case p.Name == contract.CAAccount:
				on = &cores.Clients
			case s.on != nil:
				on = s.on
			}
			started, err := machine.Start(p, on)
			if err != nil {
				return nil, err
			}
			return started.Process, nil
		},
	}); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	if err := s.StartCA(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Stop ends the services and the renewal of certificates.
func (s *Services) Stop() {
	s.stop()
	s.renewal.Wait()
	_ = s.Plane.Stop(machine.StopWithin) // the figures are there
}

func ports() (controlplane.Ports, error) {
	free, err := machine.FreePorts(2)
	if err != nil {
		return controlplane.Ports{}, err
	}
	return controlplane.Ports{GRPC: free[0], Ops: free[1]}, nil
}

// Server is a running config-watcher or xds-server.
type Server struct {
	*machine.Process
	controlplane.Ports
}

// ConfigWatcher runs a config-watcher and waits until it is ready. It keeps no state between runs.
func (s *Services) ConfigWatcher(ctx context.Context, args ...string) (*Server, error) {
	return s.run(ctx, func(at controlplane.Ports) (*controlplane.Service, error) {
		return s.Plane.ConfigWatcher(at, append([]string{"--state-dir="}, args...)...)
	})
}

// ConfigWatcherOn is ConfigWatcher on other processors than the server's. One call runs at a time.
func (s *Services) ConfigWatcherOn(ctx context.Context, on *unix.CPUSet, args ...string) (*Server, error) {
	s.on = on
	defer func() { s.on = nil }()
	return s.ConfigWatcher(ctx, args...)
}

// XDSServer runs replica n of xds-server, which follows the config-watcher at an address, and waits until it is ready.
func (s *Services) XDSServer(ctx context.Context, n int, watcher string, args ...string) (*Server, error) {
	return s.run(ctx, func(at controlplane.Ports) (*controlplane.Service, error) {
		return s.Plane.XDSServer(n, at, watcher, append(args, "--state-dir=")...)
	})
}

func (s *Services) run(ctx context.Context, add func(controlplane.Ports) (*controlplane.Service, error)) (*Server, error) {
	server, wait, err := start(add)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx); err != nil {
		server.Stop()
		return nil, err
	}
	return server, nil
}

// start starts a service; wait returns when it is ready.
func start(add func(controlplane.Ports) (*controlplane.Service, error)) (server *Server, wait func(context.Context) error, err error) {
	at, err := ports()
	if err != nil {
		return nil, nil, err
	}
	service, err := add(at)
	if err != nil {
		return nil, nil, err
	}
	if err := service.Start(); err != nil {
		return nil, nil, err
	}
	return &Server{Process: &machine.Process{Process: service.Process()}, Ports: at}, service.WaitReady, nil
}

// Both runs a config-watcher and an xds-server that follows it, started at the same time, and returns when both are
// ready. They keep no state between runs.
func (s *Services) Both(ctx context.Context, watcherArgs, xdsArgs []string) (watcher, xds *Server, err error) {
	watcher, watching, err := start(func(at controlplane.Ports) (*controlplane.Service, error) {
		return s.Plane.ConfigWatcher(at, append([]string{"--state-dir="}, watcherArgs...)...)
	})
	if err != nil {
		return nil, nil, err
	}
	xds, serving, err := start(func(at controlplane.Ports) (*controlplane.Service, error) {
		return s.Plane.XDSServer(1, at, watcher.GRPC, append([]string{"--state-dir="}, xdsArgs...)...)
	})
	if err != nil {
		watcher.Stop()
		return nil, nil, err
	}
	if err := errors.Join(watching(ctx), serving(ctx)); err != nil {
		watcher.Stop()
		xds.Stop()
		return nil, nil, err
	}
	return watcher, xds, nil
}

// Certificate keeps a certificate of a service account until Stop; it returns once there is one.
func (s *Services) Certificate(ctx context.Context, namespace, account string) (*svid.Manager, error) {
	token := filepath.Join(s.Dir, namespace+"."+account+".token")
	if err := s.WriteToken(token, 0, namespace, account, contract.TokenAudience); err != nil {
		return nil, err
	}
	m, err := svid.New(svid.Config{
		CAAddress: s.CA.GRPC, CAIDs: []spiffeid.ID{s.ID(contract.SystemNamespace, contract.CAAccount)}, TokenFile: token, RootFile: s.RootFile,
		Identity: s.ID(namespace, account), TTL: contract.CertificateTTL,
	})
	if err != nil {
		return nil, err
	}
	s.renewal.Go(func() {
		_ = m.Run(s.ctx) // ends with the context
	})
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := m.WaitReady(ctx); err != nil {
		return nil, fmt.Errorf("certificate of %s/%s: %w", namespace, account, err)
	}
	return m, nil
}
