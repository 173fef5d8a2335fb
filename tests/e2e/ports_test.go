package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/flood"
)

const (
	healthCheck = "/grpc.health.v1.Health/Check"
	deltaADS    = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

// memory is what deploy/ gives each service, in MiB.
var memory = map[string]int{"ca": 256, "config-watcher": 1024, "xds-server-0": 2048}

// TestPortsUnderAttack sends each service's ports what nobody with good intentions would: long messages that never end,
// with and without credentials, reviews whose content costs a thousand times their bytes, and silent connections. Each
// stays far below its memory, answers its probes, and the
// mesh's requests go on.
func TestPortsUnderAttack(t *testing.T) {
	webhook := testkit.FreeAddress(t).String()
	m := fleet.Start(t, binaries, fleet.Options{
		Files: []string{"testdata/echo.yaml"}, Flags: map[string][]string{"config-watcher": {"--webhook-address=" + webhook}},
	})
	m.WaitReady(t)
	client := m.From(t, "client-0")
	m.Eventually(t, takesEffect, func() error {
		_, err := client.Get(t.Context(), "http://server/")
		return err
	})
	load := fleet.StartLoad(t, client, fleet.Request{URL: "http://server/"}, 2)
	state := m.State(t)
	for name, limit := range memory {
		s, err := state.Service(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			attack := testkit.Unfinished{
				TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: state.RootCertFile}), spiffeid.RequireFromString(s.Identity)),
				URL: "https://" + s.GRPCAddress + healthCheck, Connections: 60, Size: 15 << 20,
			}
			before := resident(t, s.PID)
			grown := func(what string, sent int64, most int) {
				t.Helper()
				now := resident(t, s.PID)
				t.Logf("%s: %d MiB, before %d MiB, after %d MiB were sent", what, now, before, sent>>20)
				if now-before > most || now > limit*3/4 {
					t.Errorf("%s grew from %d MiB to %d MiB by %s; it has %d MiB", name, before, now, what, limit)
				}
			}
			grown("unfinished messages without credentials", attack.Run(t), 48)
			if name == "xds-server-0" {
				token, err := rpc.ReadToken(m.Pod(t, "server-v1-0").Agent.TokenFile)
				if err != nil {
					t.Fatal(err)
				}
				attack.Token, attack.URL = token, "https://"+s.GRPCAddress+deltaADS
				grown("unfinished messages of a workload", attack.Run(t), 160)
			}
			if name == "config-watcher" {
				peak := flood.Watch(t, s.PID, int64(limit)<<20*3/4)
				stop := flood.Attack{URL: "https://" + webhook + "/validate", Body: flood.Matches(190_000), Addresses: 2, Connections: 32}.Start(t)
				flood.Rightful(t, 5*time.Second, func() error { return probe(t.Context(), "http://"+s.OpsAddress+"/readyz") })
				t.Logf("reviews without credentials: at most %d MiB; answers %v", peak()>>20, stop())
			}
			for range 600 {
				conn, err := net.Dial("tcp", s.OpsAddress)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
			for _, path := range []string{"/livez", "/readyz"} {
				testkit.Quick(t, time.Second, func() time.Duration {
					began := time.Now()
					if err := probe(t.Context(), "http://"+s.OpsAddress+path); err != nil {
						t.Error(err)
					}
					return time.Since(began)
				})
			}
		})
	}
	m.Eventually(t, takesEffect, load.More(20))
	load.Stop(t)
}

func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// resident is how many MiB of memory a process has.
func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := testkit.ProcessStatus(pid)
	if err != nil || status.VmRSS == 0 {
		t.Fatalf("process %d says nothing of its memory: %v", pid, err)
	}
	return int(status.VmRSS >> 20)
}
