package serve_test

import (
	"fmt"
	"testing"

	"fairlead.dev/services/xds-server/internal/serve"
)

func TestStreamsOfOneAddressAreBounded(t *testing.T) {
	const allowed = 6
	r := startWith(t, setup{change: func(c *serve.Config) { c.MinStreams, c.MaxAddressStreams = 1, allowed }}, basicMesh())
	for i := range allowed {
		if err := r.delta(fmt.Sprintf("pod-%d", i), "default").connected(); err != nil {
			t.Fatalf("stream %d of %d: %v", i+1, allowed, err)
		}
	}
	r.refused(r.delta("beyond", "default").connected(), "streams", "address 127.0.0.1", fmt.Sprintf("%d are allowed", allowed),
		"--max-address-streams")
	if err := r.authenticated().as("one", "one").connected(); err != nil {
		t.Errorf("an identity at the same address: %v", err)
	}
}

// TestNamesOfAllIdentitiesAreBounded lets one identity use up the limit of all. An identity with less than an equal
// share is served.
func TestNamesOfAllIdentitiesAreBounded(t *testing.T) {
	r := startWith(t, setup{change: func(c *serve.Config) { c.MaxNamesBytes = 1 << 20 }}, basicMesh()).authenticated()
	ask := func(account string, from, n int) error {
		c := r.as(account, fmt.Sprintf("%s-%d", account, from))
		c.subscribe(eds, namesOf(eds, from, n)...)
		m, err := c.nextOrEnd()
		if err == nil {
			c.ack(m)
		}
		return err
	}
	if err := ask("greedy", 0, 1000); err != nil {
		t.Fatal(err)
	}
	err := ask("greedy", 1000, 1000)
	r.refused(err, "names", "spiffe://cluster.local/ns/default/sa/greedy", "1 MiB", "do not count")
	if err := ask("modest", 2000, 600); err != nil {
		t.Errorf("an identity with less than an equal share: %v", err)
	}
	if n := r.ADS.NamesBytes(); n <= 1<<20 {
		t.Errorf("all names take %d bytes, so that nothing was shown", n)
	}
	err = ask("modest", 3000, 600)
	r.refused(err, "names", "spiffe://cluster.local/ns/default/sa/modest", "do not count")
}
