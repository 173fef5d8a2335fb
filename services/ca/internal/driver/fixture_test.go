package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/rotation"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// mesh is a Holders of one workload.
type mesh struct {
	mu sync.Mutex
	// acked is the generation that the workload verifies with, signer that of its certificate.
	acked, signer uint64
	problem       error
	// keyID is the authority key identifier of a signer's certificates; nil makes it the signer's ID.
	keyID func(signer uint64) []byte
}

var workload = caapi.Holder{Name: "shop/web-1"}

func (m *mesh) Behind(_, generation uint64) []caapi.Holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.acked < generation {
		return []caapi.Holder{workload}
	}
	return nil
}

func (m *mesh) Of(signers ...uint64) []caapi.Holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(signers, m.signer) {
		return []caapi.Holder{workload}
	}
	return nil
}

func (m *mesh) Counts(uint64, uint64) caapi.Holders { return caapi.Holders{Total: 1} }

func (m *mesh) Problem() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}

func (m *mesh) has(acked, signer uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked, m.signer = acked, signer
}

// fixture is a ca's directory with a signer file.
type fixture struct {
	dir, file string
	cfg       Config
	mesh      *mesh
	published *trustbundle.Publisher
	driver    *Driver
}

const selfSigned = `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: disk
intermediate:
  keys: {directory: {dir: %s/keys}}
  ttl: 240h
  selfSigned: {ttl: 8760h}
`

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{dir: t.TempDir(), mesh: &mesh{signer: 1, acked: 1}}
	f.file = filepath.Join(f.dir, "signer.yaml")
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/istio-system/sa/ca")
	f.published = trustbundle.NewPublisher("cluster.local", func(ctx context.Context, own, all []string) (trustbundle.Numbered, error) {
		return f.driver.Number(ctx, own, all)
	})
	f.cfg = Config{
		Spec: func() (*kinds.Spec, error) {
			text, err := fileio.Read(f.file, 1<<16)
			if err != nil {
				return nil, err
			}
			return kinds.Parse(text)
		},
		Record: record.NewFile(filepath.Join(f.dir, "state.json"), clock.Real()), Log: testkit.Logger(t), Authority: authority.New(f.published),
		First:   func(context.Context, []string) (uint64, error) { return 1, nil },
		Before:  func() (*kinds.Spec, error) { return nil, nil },
		Own:     func(context.Context) (*guard.Guard, []string, error) { return nil, nil, errors.New("no own root") },
		Holders: f.mesh, Name: "ca-0",
		Env: kinds.Env{
			Deps:     signer.Deps{TrustDomain: id.TrustDomain(), Clock: clock.Real(), Log: testkit.Logger(t)},
			Identity: id, DNSNames: []string{"ca.istio-system.svc"}, LeafTTL: 24 * time.Hour,
		},
	}
	f.write(t, fmt.Sprintf(selfSigned, f.dir))
	return f
}

func (f *fixture) write(t *testing.T, text string) {
	t.Helper()
	testkit.WriteFile(t, f.file, []byte(text))
}

func (f *fixture) open(t *testing.T) *Driver {
	t.Helper()
	d, err := Open(t.Context(), f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	f.driver = d
	return d
}

// run opens the driver, and runs it with the bundle's manager, until stop is called.
func (f *fixture) run(t *testing.T) (stop func()) {
	t.Helper()
	f.open(t)
	m := trustbundle.NewManager(trustbundle.ManagerConfig{
		Own: f.driver.Own, Out: func([]byte) error { return nil }, Publisher: f.published, Clock: f.cfg.Env.Clock, Log: f.cfg.Log,
	})
	if err := m.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Days pass in these tests, so that nothing is published every two seconds as the manager does.
	manager := testkit.Background(t, func(ctx context.Context) error {
		for {
			_, changed, _ := f.driver.Own()
			if err := m.Publish(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
		}
	})
	driver := testkit.Background(t, f.driver.Run)
	return func() { driver(); manager() }
}

// waits lets time pass until the rotation has stood at a step for three looks.
func (f *fixture) waits(t *testing.T, step rotation.Step) (status caapi.Status) {
	t.Helper()
	stands := 0
	for end := time.Now().Add(time.Minute); stands < 3; pass(tick) {
		if status = f.driver.Status(); status.Step == string(step) {
			stands++
			continue
		}
		if stands = 0; time.Now().After(end) {
			t.Fatalf("at step %s, never waits at %s: %v %v", status.Step, step, status.Waits, status.Problems)
		}
	}
	return status
}

// pass lets time pass by the clock of the test's bubble, which takes no time.
func pass(d time.Duration) { <-time.After(d) }

func (f *fixture) do(t *testing.T, c caapi.Command) {
	t.Helper()
	if err := f.driver.Do(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) bundle() *trustbundle.Bundle {
	b, _ := f.published.Current()
	return b
}
