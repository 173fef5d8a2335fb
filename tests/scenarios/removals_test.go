package scenarios

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/harness"
)

var removals = flag.Int("removals", 4, "how often TestRemovalsFailNoRequest removes a server")

// removalRate is how many requests a second are sent meanwhile.
const removalRate = 200

// TestRemovalsFailNoRequest removes servers and starts them again, one after the other, under load, whatever their
// applications do then.
func TestRemovalsFailNoRequest(t *testing.T) {
	needs(t)
	servers := []string{"server-v1", "server-v2", "server-v3"}
	topology := &format.Topology{Name: "removals", Namespaces: map[string]map[string]string{"apps": nil}}
	for _, name := range append([]string{"client"}, servers...) {
		w := format.Workload{Name: name, Namespace: "apps", Annotations: map[string]string{
			proxyconfig.Annotation: `{"proxyMetadata": {"MINIMUM_DRAIN_DURATION": "2s"}}`,
		}}
		if name != "client" {
			w.Service = "server"
		}
		topology.Workloads = append(topology.Workloads, w)
	}
	if err := topology.Complete(); err != nil {
		t.Fatal(err)
	}
	fleet, err := newFleet(t, topology, nil, filepath.Join(outDir(t), topology.Name), place{})
	if err != nil {
		t.Fatal(err)
	}
	machines, ok := fleet.running.(*harness.Harness)
	if !ok {
		t.Fatalf("%T", fleet.running)
	}
	ways := []struct {
		name string
		end  func(ctx context.Context, server string) error
		// lost is how many requests may be in the application's hands when it ends.
		lost int
	}{
		{name: "the application exits at once", end: func(ctx context.Context, server string) error {
			return machines.Evict(ctx, server, func(app *netns.Process) error { return app.Stop(time.Second) })
		}},
		{name: "the application hangs", end: func(ctx context.Context, server string) error {
			return machines.Evict(ctx, server, func(app *netns.Process) error {
				err := app.Signal(unix.SIGSTOP)
				more(t, machines, servers, removalRate)
				return err
			})
		}},
		// Nobody can tell whether the application has read a request that the kernel has taken for it.
		{name: "the application crashes", lost: 5, end: func(ctx context.Context, server string) error {
			return machines.Kill(ctx, server+"/app")
		}},
	}
	for i := range *removals {
		way, server := ways[i%len(ways)], servers[i%len(servers)]
		t.Run(way.name, func(t *testing.T) {
			call := &format.Call{URL: "http://server/", From: "client", Method: http.MethodPost, Body: "order", Rate: removalRate,
				Timeout: format.Duration(10 * time.Second)}
			calls, _, err := fleet.prepare(call, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			load := calls.Begin(ctx, call)
			more(t, machines, servers, removalRate/4)
			if err := way.end(ctx, server); err != nil {
				t.Error(err)
			}
			if err := machines.Add(ctx, server); err != nil {
				t.Error(err)
			}
			more(t, machines, servers, removalRate/4)
			onceEach(t, machines, servers, load.End(), way.lost)
		})
	}
}

// more waits until the servers have executed so many requests more.
func more(t *testing.T, machines *harness.Harness, servers []string, requests int) {
	t.Helper()
	executed := func() (n int) {
		for _, server := range servers {
			calls, _ := machines.Calls(server) // there are none before the first one
			n += len(calls)
		}
		return n
	}
	want := executed() + requests
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := executed(); n < want {
			return fmt.Errorf("%d requests were executed, want %d", n, want)
		}
		return nil
	})
}

// onceEach asserts that every request has its answer but for so many that were lost, and that none was executed twice.
func onceEach(t *testing.T, machines *harness.Harness, servers []string, results []*caller.Result, lost int) {
	t.Helper()
	executed := map[string]int{}
	for _, server := range servers {
		calls, err := machines.Calls(server)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range calls {
			executed[id]++
		}
	}
	var failed []string
	for _, r := range results {
		times := executed[r.ID]
		switch answered := r.Err == nil && r.Status == http.StatusOK; {
		case !answered:
			failed = append(failed, fmt.Sprintf("%s, after %s, executed %d times: %v %d %s", r.Start.Format(time.StampMilli), r.Duration, times,
				r.Err, r.Status, r.Body))
		case times != 1:
			t.Errorf("%s was answered, and executed %d times", r.ID, times)
		}
		if times > 1 {
			t.Errorf("%s was executed %d times", r.ID, times)
		}
	}
	t.Logf("%d requests, %d failed", len(results), len(failed))
	if len(failed) > lost {
		t.Errorf("want at most %d to fail:\n%s", lost, strings.Join(failed, "\n"))
	}
}
