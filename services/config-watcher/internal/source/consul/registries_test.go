package consul

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

func matchesRow(got, want string) bool {
	head, part, _ := strings.Cut(want, ": ")
	return strings.HasPrefix(got, head+":") && strings.Contains(got, part)
}

// declare is a declaration with the rules, by default one for all services.
func declare(more ...string) string {
	text := "address: http://127.0.0.1:8500\ndatacenter: dc1\n" + strings.Join(more, "\n")
	if !strings.Contains(text, "rules:") {
		text += "\nrules: [{services: ['*'], namespace: consul}]"
	}
	return text
}

func put(name string, list []registry.Instance) func(map[string][]registry.Instance) {
	return func(m map[string][]registry.Instance) { m[name] = list }
}

func TestWhatIsRegisteredBecomesObjectsAndGoesWithItsRegistry(t *testing.T) {
	r := newRig(t)
	r.dc.set(put("web", instances("web", 2)))
	r.secret("east", 1, map[string]string{"registry.yaml": declare(), "token": "secret-token\n"})
	r.run()
	r.mesh.becomes("[consul web.service.consul:2]")
	r.rows("east SYNCED")
	if c := r.dc.connected()[0]; c.Token != "secret-token" || c.Address != "http://127.0.0.1:8500" || c.Datacenter != "dc1" || c.TLS != nil {
		t.Errorf("connection %+v", c)
	}
	r.dc.set(put("web", instances("web", 1)))
	r.dc.set(put("db", instances("db", 3)))
	r.mesh.becomes("[consul db.service.consul:3 consul web.service.consul:1]")
	if st := r.Status(); !st.Synced || st.Objects != 1 || st.Degraded != nil || len(st.Problems) != 0 {
		t.Errorf("status %+v", st)
	}
	r.dc.set(func(m map[string][]registry.Instance) { delete(m, "web") })
	r.mesh.becomes("[consul db.service.consul:3]")
	testkit.NoError(t, r.client.CoreV1().Secrets("istio-system").Delete(t.Context(), "east", metav1.DeleteOptions{}))
	r.mesh.becomes("[]")
	r.rows()
}

// While a declaration is exchanged, no service is without an endpoint for a moment.
func TestADeclarationIsExchangedWithoutAGap(t *testing.T) {
	r := newRig(t)
	r.dc.set(put("web", instances("web", 200)))
	r.file("east.yaml", declare())
	r.run()
	r.mesh.becomes("[consul web.service.consul:200]")
	r.mesh.mu.Lock()
	r.mesh.watch = func() {
		complete := false
		for _, namespace := range []string{"consul", "shop"} {
			complete = complete || strings.Contains(r.mesh.textNow(), namespace+" web.service.consul:200")
		}
		if !complete {
			t.Errorf("for a moment the mesh has %s", r.mesh.textNow())
		}
	}
	r.mesh.mu.Unlock()
	r.file("east.yaml", declare("rules: [{services: [web], namespace: shop, account: web}]"))
	r.mesh.becomes("[shop web.service.consul:200]")
	if n := len(r.dc.connected()); n != 2 {
		t.Errorf("%d connections, want a second one with the new rules", n)
	}
	// A broken one leaves the accepted one in use, and says what is wrong.
	r.file("east.yaml", declare("ruels: []"))
	r.rows(`east REFUSED: unknown field "ruels"`)
	r.dc.set(put("db", instances("db", 1)))
	r.dc.set(put("web", instances("web", 200)))
	r.mesh.becomes("[shop web.service.consul:200]")
	if p := r.Status().Problems; len(p) != 1 || !strings.Contains(p.Error(), "east.yaml") || p[0].Remedy == "" {
		t.Errorf("problems %v", p)
	}
	r.file("east.yaml", declare("rules: [{services: [web], namespace: shop}]"))
	r.rows("east SYNCED")
}

func TestWhichDeclarationCounts(t *testing.T) {
	r := newRig(t)
	r.secret("east", 2, map[string]string{"registry.yaml": declare()})
	r.secret("west", 1, map[string]string{"registry.yaml": declare("datacenter: dc2")[len("address: http://127.0.0.1:8500\n"):]})
	r.secret("north", 3, map[string]string{"registry.yaml": declare("domain: north")})
	r.secret("empty", 3, nil)
	r.file("north.yaml", declare("domain: north"))
	r.run()
	r.rows("east SYNCED", "empty REFUSED: registry.yaml", "north SYNCED", "north IGNORED: north.yaml declares the same registry",
		"west REFUSED: ")
	r.secret("west", 1, map[string]string{"registry.yaml": strings.Replace(declare(), "dc1", "dc2", 1)})
	r.rows("east SYNCED", "empty REFUSED: registry.yaml", "north SYNCED", "north IGNORED",
		"west REFUSED: the older registry east has the hosts of consul; set qualified: true")
	r.secret("west", 1, map[string]string{"registry.yaml": strings.Replace(declare("qualified: true"), "dc1", "dc2", 1)})
	r.dc.set(put("web", instances("web", 1)))
	r.rows("east SYNCED", "empty REFUSED", "north SYNCED", "north IGNORED", "west SYNCED")
}

// A file that is gone for a moment, as while an editor writes it, changes nothing.
func TestAFileThatIsGoneStaysForItsGrace(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRig(t)
	f := files{dir: r.dir, grace: 30 * time.Second}
	r.file("east.yaml", declare())
	r.file(".hidden.yaml", declare())
	r.file("notes.txt", "no registry")
	count := func(after time.Duration, want int) {
		t.Helper()
		if got, err := f.read(at.Add(after)); err != nil || len(got) != want {
			t.Errorf("after %s: %d files, %v; want %d", after, len(got), err, want)
		}
	}
	count(0, 1)
	r.removeFile("east.yaml")
	count(time.Second, 1)
	count(30*time.Second, 1)
	count(31*time.Second, 0)
	r.file("east.yaml", declare())
	count(32*time.Second, 1)
	f.dir = "/nowhere"
	if got, err := f.read(at); err == nil || len(got) != 1 {
		t.Errorf("a directory that cannot be read: %d files, %v", len(got), err)
	}
}

// What was read outlives a restart, with Consul away and with the declarations unreadable too.
func TestWhatWasReadOutlivesARestart(t *testing.T) {
	r := newRig(t)
	r.dc.set(put("web", instances("web", 3)))
	r.file("east.yaml", declare("token: secret-token"))
	r.run()
	r.rows("east SYNCED")
	r.mesh.becomes("[consul web.service.consul:3]")
	r.dc.mu.Lock()
	r.dc.away = errAway
	r.dc.mu.Unlock()
	r.run()
	r.mesh.becomes("[consul web.service.consul:3]")
	if r.dc.connected()[1].Known["web"] == nil {
		t.Error("the client is not told what is known")
	}
	r.rows("east AWAY: nobody answers")
	if st := r.Status(); !st.Synced && st.LastGood.IsZero() {
		t.Errorf("the mesh waits for a registry whose last state is known: %+v", st)
	}
	r.dc.mu.Lock()
	r.dc.away = nil
	delete(r.dc.services, "web")
	r.dc.services["db"] = instances("db", 1)
	r.dc.tell()
	r.dc.mu.Unlock()
	r.mesh.becomes("[consul db.service.consul:1]")
	r.rows("east SYNCED")
	// Nothing can be read: neither the declarations nor Consul.
	r.run(func(c *Config) { c.Dir = "/nowhere" })
	r.mesh.becomes("[consul db.service.consul:1]")
	r.rows("east AWAY: no declaration of the registry has been read since the start")
	r.stop()
	if found := grep(t, r.state, "secret-token"); found != "" {
		t.Errorf("the token is in %s", found)
	}
	// A registry that was removed meanwhile is forgotten.
	r.removeFile("east.yaml")
	r.run()
	testkit.Eventually(t, testkit.Patience, func() error {
		if st := r.Status(); !st.Synced || r.mesh.text() != "[]" {
			return fmt.Errorf("status %+v, mesh %s", st, r.mesh.text())
		}
		return nil
	})
	r.stop()
	if found := grep(t, r.state, "10.0.0.1"); found != "" {
		t.Errorf("the state of a removed registry is in %s", found)
	}
}

// A registry that does not answer holds up the first revision for the time of the flag alone.
func TestTheMeshDoesNotWaitForEver(t *testing.T) {
	r := newRig(t)
	r.dc.away = errAway
	r.file("east.yaml", declare())
	r.run(func(c *Config) { c.Timeout = 1500 * time.Millisecond })
	if r.Status().Settled() {
		t.Error("the mesh does not wait at all")
	}
	r.rows("east TIMEOUT: nobody answers")
	if st := r.Status(); !st.Settled() || st.Degraded == nil || !strings.Contains(st.Degraded.Error(), "--registry-timeout") {
		t.Errorf("status %+v", st)
	}
}

// TestARegistryWhoseSecretAListLacksIsReadOn: the own API server may have lost the Secret, also while config-watcher
// was down. A second list confirms it; an event, and a file that is gone, count at once.
func TestARegistryWhoseSecretAListLacksIsReadOn(t *testing.T) {
	r := newRig(t)
	clock := testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	onClock := func(c *Config) { c.Clock = clock }
	r.dc.set(put("web", instances("web", 3)))
	r.secret("east", 1, map[string]string{"registry.yaml": declare()})
	r.file("west.yaml", declare("domain: west"))
	r.run(onClock)
	both := "[consul web.service.consul:3 consul web.service.west:3]"
	r.mesh.becomes(both)
	east := "[consul web.service.consul:3]"
	held := func(n int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if w := r.Status().Withheld; len(w) != min(n, 1) || n > 0 && (w[0].Objects != n || w[0].What != "Secret") {
				return fmt.Errorf("withheld: %v, want %d", w, n)
			}
			return nil
		})
	}
	remove := func() {
		t.Helper()
		testkit.NoError(t, r.client.CoreV1().Secrets("istio-system").Delete(t.Context(), "east", metav1.DeleteOptions{}))
	}
	r.stop()
	remove()
	r.removeFile("west.yaml")
	r.run(onClock)
	held(1)
	r.mesh.becomes(east)
	r.rows("east AWAY: no declaration of the registry has been read since the start")
	// It comes back.
	r.secret("east", 1, map[string]string{"registry.yaml": declare()})
	held(0)
	r.rows("east SYNCED")
	r.mesh.becomes(east)
	// A second list lacks it too.
	r.stop()
	remove()
	r.run(onClock)
	held(1)
	lists := r.secrets.State().Lists
	clock.Advance(withheld.Wait)
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := r.secrets.State().Lists; n == lists {
			clock.Advance(checkEvery)
			return fmt.Errorf("%d lists", n)
		}
		return nil
	})
	r.mesh.becomes("[]")
	held(0)
	// An administrator accepts it.
	r.secret("east", 1, map[string]string{"registry.yaml": declare()})
	r.mesh.becomes(east)
	r.stop()
	remove()
	r.run(onClock)
	held(1)
	if n := r.Accept(); n != 1 {
		t.Errorf("accepts %d", n)
	}
	r.mesh.becomes("[]")
	// An event.
	r.secret("east", 1, map[string]string{"registry.yaml": declare()})
	r.mesh.becomes(east)
	remove()
	r.mesh.becomes("[]")
	held(0)
}

// What was read is saved soon, the first time and after a change: a process that is killed then has it at the next
// start.
func TestWhatWasReadIsSavedSoon(t *testing.T) {
	r := newRig(t)
	r.file("east.yaml", declare())
	r.run()
	for n := range 2 {
		r.dc.set(func(m map[string][]registry.Instance) {
			for i := range 10 { // in more shards than are saved at once
				m[fmt.Sprint("s", i)] = instances(fmt.Sprint("s", i), n+1)
			}
		})
		testkit.Eventually(t, testkit.Patience, func() error {
			for i := range 10 {
				text, _, err := r.cfg.Saved.Get(shardFile("east", shardOf(fmt.Sprint("s", i))))
				if last := fmt.Sprintf(`"ID":"s%d%d"`, i, n); err != nil || !strings.Contains(string(text), last) {
					return fmt.Errorf("%s is not saved: %w", last, err)
				}
			}
			return nil
		})
	}
}
