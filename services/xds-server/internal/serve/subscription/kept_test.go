package subscription

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// heap returns the bytes in use on the heap.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far less than 2^63
}

// TestSotwClientIsNotRememberedWhatItHasDropped requests endpoints that do not exist, again and again others.
func TestSotwClientIsNotRememberedWhatItHasDropped(t *testing.T) {
	s := start(t, false, nil)
	s.run(mesh)
	for i := range 20 {
		s.do(fmt.Sprintf("sub eds gone-%d kept-%d", i, i%2))
		if i%2 == 0 {
			s.do("ack eds")
		}
	}
	s.do("ack eds") // of a response with a name that the client has dropped meanwhile
	if sub := s.client.types[0]; len(sub.ackedBlobs) > sub.names.Len() {
		t.Errorf("%d resources are remembered of %d names", len(sub.ackedBlobs), sub.names.Len())
	}
}

// TestVersionsOfVirtualHostsAreBounded states a version that is none of this server's.
func TestVersionsOfVirtualHostsAreBounded(t *testing.T) {
	s := start(t, true, func(c *Config) { c.Limits.MaxSubscribedBytes = 16 << 20 })
	s.run(mesh)
	before := heap()
	s.request(urls["vhds"], "", nil, nil, func(m *discovery.DeltaDiscoveryRequest) {
		m.InitialResourceVersions = map[string]string{"80/a": strings.Repeat("v", 8<<20)}
	})
	if took := heap() - before; took > 1<<20 {
		t.Errorf("a version takes %d KiB", took>>10)
	}
	s.run([]step{{"sub rds 80", "rds +80; vhds +80/a +80/b"}})
	runtime.KeepAlive(s)
}

// TestManyChangesThatWereSentAhead tells of thousands of changes after a response with as many resources.
func TestManyChangesThatWereSentAhead(t *testing.T) {
	const n = 20_000
	for about, told := range map[string]string{"the same": "sent", "others": "other"} {
		t.Run(about, func(t *testing.T) {
			s := start(t, true, nil)
			name := func(kind string) (names []string) {
				for i := range n {
					names = append(names, fmt.Sprintf("%s-%06d=1", kind, i))
				}
				return names
			}
			s.change(urls["cds"], name("sent"))
			s.publish()
			s.do("sub cds *")
			s.do("ack cds")
			if told == "other" {
				s.changed, s.added = plan.Changes{}, plan.Changes{}
				s.change(urls["cds"], name(told))
				s.publish()
			}
			begin := time.Now()
			dirty := s.client.Changed(s.changed, s.added)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("%d changes take %s", n, took)
			}
			if dirty != (told == "other") {
				t.Errorf("dirty: %v", dirty)
			}
		})
	}
}

// refused reports whether the account has refused names.
func refused(err error) bool {
	var refusal *RefusedError
	return errors.As(err, &refusal)
}

// TestNamesDroppedBesideAWildcardAreCharged subscribes to names and unsubscribes at once, while a response is not
// answered.
func TestNamesDroppedBesideAWildcardAreCharged(t *testing.T) {
	for about, c := range map[string]struct {
		delta bool
		first string
	}{"delta": {true, "sub cds *"}, "sotw": {false, "full"}} {
		t.Run(about, func(t *testing.T) {
			const enough = 20_000
			s := start(t, c.delta, func(c *Config) { c.Limits.MaxSubscribedBytes = 16 << 20 })
			s.run(mesh)
			s.do(c.first)
			churn := func(i int) error {
				name := fmt.Sprintf("%06d", i)
				if c.delta {
					return s.try(urls["cds"], "", []string{name}, []string{name}, nil)
				}
				return errors.Join(s.try(urls["cds"], "", []string{"*", name}, nil, nil), s.try(urls["cds"], "", []string{"*"}, nil, nil))
			}
			for i := range 10 {
				if err := churn(i); err != nil {
					t.Fatal(err)
				}
			}
			if s.charged == 0 {
				t.Error("nothing is charged before the answer")
			}
			s.do("free")
			s.do("ack cds")
			s.do("ack cds")
			if _, kept, bytes := s.client.Kept(); s.charged != 0 || bytes != 0 || kept != 0 {
				t.Errorf("%d bytes charged, %d names and %d bytes kept after the answer", s.charged, kept, bytes)
			}
			s.do("full")
			s.do("set cds a=2") // not sent
			var err error
			for i := 0; err == nil && i < enough; i++ {
				err = churn(i)
			}
			if _, kept, _ := s.client.Kept(); !refused(err) || kept > enough {
				t.Errorf("%d names are kept, error %v", kept, err)
			}
			if s.client.Close(true); s.charged != 0 {
				t.Errorf("%d bytes charged after the end", s.charged)
			}
		})
	}
}

// TestOwedNamesAreChargedWhatTheyCost measures names that are dropped beside a wildcard.
func TestOwedNamesAreChargedWhatTheyCost(t *testing.T) {
	const n = 20_000
	s := start(t, true, func(c *Config) { c.Limits.MaxSubscribedBytes = 16 << 20 })
	s.allowed = 1 << 30
	s.run(mesh)
	s.do("sub cds *")
	before := heap()
	for i := range n {
		name := []string{fmt.Sprintf("outbound|80||made-up-%06d.nowhere.svc.cluster.local", i)}
		s.request(urls["cds"], "", name, name, nil)
	}
	took := heap() - before
	t.Logf("a name takes %d bytes and is charged %d", took/n, s.charged/n)
	if took > s.charged*11/10 {
		t.Errorf("%d bytes are charged for %d", s.charged, took)
	}
	runtime.KeepAlive(s)
}

// TestInventedInitialVersionsAreCharged says to hold resources that do not exist.
func TestInventedInitialVersionsAreCharged(t *testing.T) {
	hold := func(s *script, kind string, n int) error {
		return s.try(urls[kind], "", nil, nil, func(m *discovery.DeltaDiscoveryRequest) {
			m.InitialResourceVersions = map[string]string{strings.Repeat("x", 101): "longer than any name"}
			for i := range n {
				m.InitialResourceVersions[fmt.Sprintf("80/%s-%06d", kind, i)] = "x"
			}
		})
	}
	t.Run("some are free", func(t *testing.T) {
		s := start(t, true, nil)
		s.run(mesh)
		if err := hold(s, "cds", 50); err != nil || s.charged != 0 {
			t.Errorf("%d bytes charged, error %v", s.charged, err)
		}
		if sent := s.do("wait"); strings.Count(sent, "-80/cds-") != 50 || strings.Contains(sent, "xxx") {
			t.Errorf("sent %s", sent)
		}
	})
	t.Run("many are charged until the answer", func(t *testing.T) {
		s := start(t, true, nil)
		s.run(mesh)
		for _, kind := range []string{"cds", "lds"} {
			if err := hold(s, kind, 1000); err != nil {
				t.Fatal(err)
			}
		}
		s.do("wait")
		if s.charged < 200_000 {
			t.Errorf("%d bytes charged before the answer", s.charged)
		}
		s.do("ack cds")
		s.do("nack lds no")
		s.do("set lds 80=2")
		s.do("ack lds")
		s.do("ack cds") // of the removals, which have waited for the listeners
		if _, _, bytes := s.client.Kept(); s.charged != 0 || bytes != 0 {
			t.Errorf("%d bytes charged, %d kept after the answer", s.charged, bytes)
		}
	})
	t.Run("virtual hosts too", func(t *testing.T) {
		s := start(t, true, nil)
		s.run(mesh)
		if err := hold(s, "vhds", 1000); err != nil {
			t.Fatal(err)
		}
		s.do("has rds 80")
		if s.charged < 100_000 {
			t.Errorf("%d bytes charged before the answer", s.charged)
		}
		if s.do("ack vhds"); s.charged != int64(len("80")+quota.NameCost) {
			t.Errorf("%d bytes charged after the answer", s.charged)
		}
	})
	t.Run("too many are refused", func(t *testing.T) {
		s := start(t, true, func(c *Config) { c.Limits.MaxSubscribedBytes = 16 << 20 })
		s.run(mesh)
		if err := hold(s, "cds", 20_000); !refused(err) {
			t.Errorf("error %v", err)
		}
		if s.client.Close(true); s.charged != 0 {
			t.Errorf("%d bytes charged after the end", s.charged)
		}
	})
	t.Run("of all types together", func(t *testing.T) {
		s := start(t, true, nil)
		s.run(mesh)
		s.allowed = 1 << 30
		var err error
		for _, kind := range []string{"cds", "lds", "ecds"} {
			err = errors.Join(err, hold(s, kind, 6000))
		}
		if err == nil || s.client.nameBytes > s.client.limits.MaxSubscribedBytes {
			t.Errorf("%d bytes are kept, error %v", s.client.nameBytes, err)
		}
	})
}

// TestRejectionKeepsWhatIsShown has clients that reject a response with a message that is much longer.
func TestRejectionKeepsWhatIsShown(t *testing.T) {
	const clients = 64
	message := strings.Repeat("x", 60<<10)
	scripts := make([]*script, clients)
	for i := range scripts {
		scripts[i] = start(t, true, nil)
		scripts[i].run(mesh)
		scripts[i].do("sub cds *")
	}
	before := heap()
	for _, s := range scripts {
		s.request(urls["cds"], s.nonces[urls["cds"]], nil, nil, func(m *discovery.DeltaDiscoveryRequest) {
			m.ErrorDetail = &rpcstatus.Status{Message: message}
		})
	}
	if took := (heap() - before) / clients; took > 16<<10 {
		t.Errorf("a rejection keeps %d KiB, %d are shown", took>>10, maxRejectionBytes>>10)
	}
	types, _, _ := scripts[0].client.Status()
	if got := types[0].GetRejection().GetMessage(); got != message[:maxRejectionBytes] {
		t.Errorf("%d bytes are shown", len(got))
	}
}
