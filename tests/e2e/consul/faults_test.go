package consul

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/consultest"
)

// ofCluster declares a cluster's client agent, with a token of a reader.
func ofCluster(t *testing.T, c *consultest.Cluster, rules string) string {
	t.Helper()
	token, _ := c.Token(t, consultest.ReadAll)
	return declaration(c.Client.URL, c.Client.TLS.ServerName, c.CA, rules, "token: "+token)
}

// changes registers an instance with a status, as soon as Consul takes that.
func changes(t *testing.T, a *consultest.Agent, r consultest.Registration) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		_, err := a.Do(http.MethodPut, "/v1/catalog/register", r)
		return err
	})
}

// Requests of a sidecar go on while leaders are killed, agents restart and the quorum is away, for a minute if the test
// is long: none fails. In between the mesh still follows what is registered, also a config-watcher that has started
// meanwhile.
func TestNoRequestFailsWhileConsulDoes(t *testing.T) {
	cluster := consultest.NewCluster(t)
	kills, requests, without := 5, 20_000, 10*time.Second
	if long {
		kills, requests, without = 30, 100_000, time.Minute
	}
	for i := range 3 {
		cluster.Client.Register(t, runs(t, fmt.Sprint("web-", i)).registration("web", "passing"))
	}
	probed := []application{runs(t, "a"), runs(t, "b")}
	cluster.Client.Register(t, probed[0].registration("probed", "passing"))
	cluster.Client.Register(t, probed[1].registration("probed", "critical"))
	r := start(t, map[string]string{"east": ofCluster(t, cluster, "  - {services: ['*'], namespace: shop, port: 80, protocol: http}")})
	r.reaches("http://probed.service.consul/", "a")
	turn := 0
	// follows waits until a change of health has come to Envoy.
	follows := func() {
		t.Helper()
		turn++
		changes(t, cluster.Client, probed[turn%2].registration("probed", "passing"))
		changes(t, cluster.Client, probed[(turn+1)%2].registration("probed", "critical"))
		r.reaches("http://probed.service.consul/", probed[turn%2].name)
	}
	follows()
	const rate = 300
	stream, began := r.load("web.service.consul", rate), time.Now()
	for i := range kills {
		leader := cluster.Leader(t)
		leader.Kill()
		follows()
		leader.Start(t)
		if i%5 == 2 {
			cluster.Client.Kill()
			r.says("east", "cannot be read")
			cluster.Client.Start(t)
			follows()
		}
	}
	t.Logf("%d leaders killed in %s", kills, time.Since(began).Round(time.Second))
	cluster.Servers[0].Kill()
	cluster.Servers[1].Kill()
	testkit.Eventually(t, patience, func() error {
		if _, err := cluster.Client.Do(http.MethodGet, "/v1/health/service/web?consistent", nil); err == nil {
			return errors.New("there is a quorum")
		}
		return nil
	})
	alone := time.Now()
	r.says("east", "cannot be read")
	r.saves("probed", probed[turn%2].name)
	r.Kill(t, "config-watcher") // and it starts again, with what it has saved
	r.says("east", "SAVED")
	r.reaches("http://probed.service.consul/", probed[turn%2].name)
	time.Sleep(without - time.Since(alone)) // what is claimed is a time
	cluster.Servers[0].Start(t)
	cluster.Servers[1].Start(t)
	follows()
	r.says("east", "SYNCED")
	time.Sleep(time.Duration(requests)*time.Second/rate - time.Since(began)) // until they are as many as is claimed
	stream.Stop()
	taken := stream.Take()
	t.Logf("%d requests in %s, the slowest took %s", taken.Sent, time.Since(began).Round(time.Second), taken.Slowest.Round(time.Millisecond))
	if taken.Failed > 0 || taken.Sent < requests*9/10 {
		t.Errorf("%d of %d requests failed: %s", taken.Failed, taken.Sent, strings.Join(taken.First, "\n"))
	}
}

// saves waits until config-watcher has saved that an instance of a service passes.
func (r *rig) saves(service, id string) {
	r.t.Helper()
	r.Eventually(r.t, testkit.Patience, func() error {
		files, err := filepath.Glob(r.Path("services", "config-watcher", "sources", "consul", "registry-east", "*.jsonl"))
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range bytes.Lines(content) {
				var record struct {
					Key    struct{ Name string }
					Object []struct{ ID, Status string }
				}
				if err := json.Unmarshal(line, &record); err != nil {
					return err
				}
				for _, i := range record.Object {
					if record.Key.Name == service && i.ID == id && i.Status == "passing" {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("it is not saved that %s of %s passes: %w", id, service, err)
	})
}
