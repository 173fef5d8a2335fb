package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
)

// large measures whether a change costs more in a mesh of ten times the services: the same sidecars and classes, 1,000
// and 10,000 services. The long form has 1,000 sidecars of 200 classes, the short one 200 of 40.
func (l *lab) large(ctx context.Context, t *table) error {
	spec := mesh.Spec{Services: 1000, Rules: 100, Sidecars: 200, Classes: 40}
	if l.Full {
		spec.Sidecars, spec.Classes = 1000, 200
	}
	var small *fixture
	for _, services := range []int{1000, 10000} {
		spec.Services = services
		f, err := l.largeOf(ctx, t, spec)
		if err != nil {
			return err
		}
		if small == nil {
			small = f
			continue
		}
		t.add(line{
			id: "large/growth", what: fmt.Sprintf("one Service added: CPU at 10,000 services beside 1,000, %d sidecars", spec.Sidecars),
			figure: ms(f.addCPU), floor: ms(small.addCPU), ratio: times(float64(f.addCPU), float64(small.addCPU)), goal: "≤ 2 × that at 1,000",
			verdict: judge(float64(f.addCPU), 2*float64(small.addCPU), false),
		})
	}
	return nil
}

func (l *lab) largeOf(ctx context.Context, t *table, spec mesh.Spec) (*fixture, error) {
	f, err := l.fixture(ctx, fmt.Sprintf("large-%d", spec.Services), spec)
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return nil, err
	}
	got, err := f.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext})
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("cold start at %d services, %d sidecars of %d classes", spec.Services, spec.Sidecars, spec.Classes)
	t.fixedLine(f.id("cold/cpu"), what+": CPU", got.cpu, 0, 0, "")
	t.bytesLine(f.id("cold/bytes"), what+": bytes per proxy", float64(got.bytes)/float64(spec.Sidecars), -1, "")
	if err := f.openFloor(ctx, floor.Files{}, true); err != nil {
		return nil, err
	}
	return f, f.added(ctx, t, func(string) string { return "" })
}

// coldTLS is the cold start over mutual TLS, as it is in production.
func (l *lab) coldTLS(ctx context.Context, t *table) error {
	spec := ordinary(200)
	configs, err := l.tlsFor(ctx, spec)
	if err != nil {
		return err
	}
	f, err := l.fixture(ctx, "tls", spec)
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return err
	}
	target := proxy.Target{Address: f.server.GRPC, TLS: configs}
	f.fleet.Record(true)
	if _, err := f.connectAll(ctx, f.server, target); err != nil {
		return err
	}
	script := f.fleet.Record(false)
	f.fleet.Close()
	f.server.Stop()
	files, err := l.floorFiles(ctx)
	if err != nil {
		return err
	}
	if err := f.openFloor(ctx, files, false); err != nil {
		return err
	}
	if err := f.floor.Load(script, true); err != nil {
		return err
	}
	base, err := f.coldFloor(ctx, &target)
	if err != nil {
		return err
	}
	if f.server, err = l.serve(ctx, f.watcher.Address); err != nil {
		return err
	}
	target.Address = f.server.GRPC
	got, err := f.connectAll(ctx, f.server, target)
	if err != nil {
		return err
	}
	f.coldLines(t, got, base, "cold start over TLS", func(string) string { return "" })
	return nil
}

// floorFiles is an xds-server's identity as files, for the floor.
func (l *lab) floorFiles(ctx context.Context) (floor.Files, error) {
	own, err := l.services.Certificate(ctx, contract.SystemNamespace, contract.XDSServerAccount)
	if err != nil {
		return floor.Files{}, err
	}
	m, err := own.Current()
	if err != nil {
		return floor.Files{}, err
	}
	f := floor.Files{Cert: filepath.Join(l.dir, "floor.crt"), Key: filepath.Join(l.dir, "floor.key"), Roots: l.services.RootFile}
	if err := os.WriteFile(f.Cert, m.CertPEM, 0o600); err != nil {
		return f, err
	}
	return f, os.WriteFile(f.Key, m.KeyPEM, 0o600)
}
