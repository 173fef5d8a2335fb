package consul

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit/consultest"
)

// registries are how many catalogs are in the mesh at once: each is a datacenter with a domain of its own.
const registries = 40

// A thousand random catalogs and rules, or without a real Consul fewer, are in Envoy what the model says: hosts,
// ports, protocols, health, weights, localities, and no identity but the rules', whatever a registration says of
// itself. One of forty is that of the real Consul. SEED draws the same again.
func TestEnvoyHasTheModels(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	}
	t.Logf("SEED=%d", seed)
	rounds := 1000 / registries
	if os.Getenv("CONSUL_BIN") == "" {
		rounds = 5 // among all other tests
	}
	all := make([]*datacenter, registries)
	d := drawn{rand.New(rand.NewPCG(seed, 0))}
	for i := range all {
		all[i] = newDatacenter(t, fmt.Sprintf("c%02d", i), i == 0)
	}
	texts := map[string]string{}
	for _, dc := range all {
		dc.draw(t, d)
		texts[dc.name] = dc.declaration()
	}
	r := start(t, texts)
	for round := range rounds {
		if round > 0 {
			for _, dc := range all {
				dc.draw(t, d)
				r.declare(dc.name, dc.declaration())
			}
		}
		began, ports, endpoints := time.Now(), 0, 0
		r.Eventually(t, patience, func() error {
			seen, err := r.view()
			if err != nil {
				return err
			}
			ports, endpoints = 0, 0
			for _, dc := range all {
				want := modelOf(dc.name, dc.rules, dc.catalog)
				for _, c := range want {
					ports, endpoints = ports+1, endpoints+len(c.endpoints)
				}
				if err := dc.differs(seen, want); err != nil {
					return err
				}
			}
			return nil
		})
		t.Logf("round %d: %d ports of services and %d endpoints in %s", round, ports, endpoints, time.Since(began).Round(time.Millisecond))
	}
}

// datacenter is one that is drawn again and again.
type datacenter struct {
	name    string
	rules   []rule
	catalog catalog
	fake    *consultest.Fake
	// real is nil unless the datacenter is a real one.
	real *consultest.Agent
}

func newDatacenter(t *testing.T, name string, real bool) *datacenter {
	dc := &datacenter{name: name}
	if real && os.Getenv("CONSUL_BIN") != "" {
		dc.real = consultest.Dev(t)
	} else {
		dc.fake = consultest.StartFake(nil)
		t.Cleanup(dc.fake.Stop)
	}
	return dc
}

// draw replaces the catalog and the rules.
func (dc *datacenter) draw(t *testing.T, d drawn) {
	t.Helper()
	before := dc.catalog
	dc.rules, dc.catalog = d.rules(), d.catalog()
	if dc.real == nil {
		for name := range before {
			if dc.catalog[name] == nil {
				dc.fake.Set(name)
			}
		}
		for name, all := range dc.catalog {
			dc.fake.Set(name, all...)
		}
		return
	}
	for _, all := range before {
		for _, registered := range all {
			dc.real.Deregister(t, registered.Node, "")
		}
	}
	for _, all := range dc.catalog {
		for _, registered := range all {
			meta := registered.Service.Meta
			registered.Service.Meta = map[string]string{}
			for key, value := range meta { // Consul refuses others
				registered.Service.Meta[strings.NewReplacer(".", "_", "/", "_").Replace(key)] = value
			}
			dc.real.Register(t, registered)
		}
	}
}

func (dc *datacenter) declaration() string {
	domain := "domain: " + dc.name
	if dc.real != nil {
		return fmt.Sprintf("address: %s\ndatacenter: dc1\nrules:\n%s\n%s\n", dc.real.URL, text(dc.rules), domain)
	}
	return ofFake(dc.fake, text(dc.rules), domain)
}

// differs compares what Envoy has of the datacenter with what the model says.
func (dc *datacenter) differs(seen, want map[string]cluster) error {
	var found []error
	for name, w := range want {
		if s, is := seen[name]; !is {
			found = append(found, fmt.Errorf("Envoy has no %s, want %+v", name, w))
		} else if !s.equal(w) {
			found = append(found, fmt.Errorf("Envoy has %s %+v, want %+v", name, s, w))
		}
	}
	for name, s := range seen {
		if _, is := want[name]; !is && strings.HasSuffix(name, "."+dc.name) {
			found = append(found, fmt.Errorf("Envoy has %s %+v, the model has not", name, s))
		}
	}
	if len(found) > 0 {
		found = append(found, fmt.Errorf("rules:\n%s", text(dc.rules)))
	}
	return errors.Join(found...)
}
