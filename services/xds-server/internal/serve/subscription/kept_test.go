package subscription

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
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
	s := start(t, true, nil)
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
