package policies

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

const (
	// manyRounds make and delete manyObjects of each kind.
	manyRounds  = 20
	manyObjects = 100
	// manyMemory is how many times the memory of a fresh proxy one may hold afterwards.
	manyMemory = 1.15
	// restFor is how long Envoy may take to give back what it does not need.
	restFor = 15 * time.Second
)

// many are objects for the server; the policies deny a path that no other policy does.
func many(t *testing.T, round int) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "# round %d\n", round)
	for n := range manyObjects {
		key := newKey(t, n)
		set, err := key.JWKS()
		testkit.NoError(t, err)
		text, err := json.Marshal(string(set))
		testkit.NoError(t, err)
		fmt.Fprintf(&b, `---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens-%d, namespace: apps}
spec: {selector: {matchLabels: {app: server}}, jwtRules: [{issuer: "%s/%[1]d", jwks: %s}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: many-%[1]d, namespace: apps}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{to: [{operation: {methods: [GET], paths: [/denied-%[1]d, /also-%[1]d/*]}}]}]
`, n, issuer, text)
	}
	return b.String()
}

// TestPoliciesLeaveNothing makes and deletes many policies and RequestAuthentications, time and again, while requests
// go on. Envoy holds hardly more memory afterwards than one that was just started.
func TestPoliciesLeaveNothing(t *testing.T) {
	hostmesh.Needs(t)
	m := hostmesh.New(t, 1, map[string]string{"workload.yaml": workload})
	proxy, caller := serverAndCaller(t, m, drains)
	denied := fmt.Sprintf("/denied-%d", manyObjects-1)
	until := func(header, path string, status int) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			c := connect(t, caller)
			defer c.conn.Close() // one that is open takes memory
			return c.getWith(header, path, status)
		})
	}
	const noToken = "Authorization: Bearer none\r\n"
	free := func() {
		until("", denied, http.StatusOK)
		until(noToken, "/", http.StatusOK)
	}
	free()
	var peak int64
	for round := range manyRounds {
		m.WriteConfig("many.yaml", many(t, round))
		until("", denied, http.StatusForbidden)
		until(noToken, "/", http.StatusUnauthorized)
		peak = max(peak, resident(t, proxy))
		m.RemoveConfig("many.yaml")
		free()
	}
	time.Sleep(restFor)
	left := proxy.Stats("server.memory_allocated")["server.memory_allocated"]
	after := resident(t, proxy)

	proxy.Restart()
	hostmesh.WaitReady(t, proxy)
	for range manyRounds {
		free()
	}
	time.Sleep(restFor)
	fresh := resident(t, proxy)
	const mib = 1 << 20
	t.Logf("after %d rounds of %d policies and as many RequestAuthentications Envoy holds %.1f MiB (at most %.1f), "+
		"a fresh one %.1f: %.2f times; in use are %.1f MiB, of a fresh one %.1f", manyRounds, manyObjects, float64(after)/mib, float64(peak)/mib,
		float64(fresh)/mib, float64(after)/float64(fresh), float64(left)/mib, float64(proxy.Stats("server.memory_allocated")["server.memory_allocated"])/mib)
	if float64(after) > manyMemory*float64(fresh) {
		t.Errorf("that is more than %.2f times", manyMemory)
	}
}

// resident is the memory of a proxy's Envoy, the agent's child.
func resident(t *testing.T, p *hostmesh.Proxy) int64 {
	t.Helper()
	all, err := procfs.AllProcs()
	testkit.NoError(t, err)
	for _, process := range all {
		stat, err := process.Stat()
		if err != nil || stat.PPID != p.Agent().PID() {
			continue // it may have ended
		}
		status, err := process.NewStatus()
		testkit.NoError(t, err)
		return int64(status.VmRSS) //nolint:gosec // it fits
	}
	t.Fatal("the agent has no Envoy")
	return 0
}
