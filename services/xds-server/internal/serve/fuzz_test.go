package serve_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/serve"
)

const (
	fuzzedNameBytes = 64 << 10
	fuzzedHosts     = 8
)

// script drives a hostile client byte by byte; the client ends with the last byte.
type script struct{ left []byte }

func (s *script) next() int {
	if len(s.left) == 0 {
		return 0
	}
	b := s.left[0]
	s.left = s.left[1:]
	return int(b)
}

var fuzzedTypes = []string{cds, eds, lds, rds, vhds, "", "type.googleapis.com/nonsense"}

func (s *script) name() string {
	names := []string{
		"*", "", "80", "81", "/", "80/none", hostNameA, hostNameB, "80|" + hostA, "80|nowhere", "\x00", strings.Repeat("x", 3000),
		strings.Repeat("y", 5000),
	}
	if n := s.next(); n < 2*len(names) {
		return names[n/2]
	}
	return fmt.Sprintf("80/%d:80", s.next())
}

func (s *script) names() []string {
	var names []string
	for range s.next() % 6 {
		names = append(names, s.name())
	}
	if s.next() == 1 {
		for i := range 300 {
			names = append(names, fmt.Sprintf("80/many-%d:80", i))
		}
	}
	return names
}

// fuzzServer has small limits.
func fuzzServer(t testing.TB) *fixture {
	return startWith(t, setup{translators: withVirtualHosts, change: func(c *serve.Config) {
		c.MaxSubscribedBytes, c.MaxOnDemandHosts, c.MaxUnsentBytes, c.MaxResponseBytes = fuzzedNameBytes, fuzzedHosts, 1<<10, 1<<8
	}}, basicMesh())
}

// play runs a client by the script: subscriptions, unsubscriptions, ACKs and NACKs in any order, also of responses that
// were never sent.
func play(r *fixture, s *script) error {
	delta, onDemand := s.next()%2 == 0, s.next()%2 == 0
	var (
		send  func(nonce string, failure *rpcstatus.Status) error
		heard func() (nonce string)
		ended chan error
		leave func() error
	)
	if delta {
		c := r.delta("bad", "default")
		if onDemand {
			c.onDemand()
		}
		defer c.cancel()
		heard = func() string {
			select {
			case m := <-c.got:
				return m.GetNonce()
			default:
				return "7"
			}
		}
		send = func(nonce string, failure *rpcstatus.Status) error {
			m := &discovery.DeltaDiscoveryRequest{
				Node: c.node, TypeUrl: fuzzedTypes[s.next()%len(fuzzedTypes)], ResponseNonce: nonce, ErrorDetail: failure,
				ResourceNamesSubscribe: s.names(), ResourceNamesUnsubscribe: s.names(), InitialResourceVersions: map[string]string{},
			}
			for _, name := range s.names() {
				m.InitialResourceVersions[name] = "x"
			}
			return c.stream.Send(m)
		}
		ended, leave = c.err, c.stream.CloseSend
	} else {
		c := r.sotw("bad", "default")
		defer c.cancel()
		heard = func() string {
			select {
			case m := <-c.got:
				return m.GetNonce()
			default:
				return "7"
			}
		}
		send = func(nonce string, failure *rpcstatus.Status) error {
			return c.stream.Send(&discovery.DiscoveryRequest{
				Node: c.node, TypeUrl: fuzzedTypes[s.next()%len(fuzzedTypes)], ResponseNonce: nonce, ErrorDetail: failure, ResourceNames: s.names(),
				VersionInfo: nonce,
			})
		}
		ended, leave = c.err, c.stream.CloseSend
	}
	for i := 0; len(s.left) > 0; i++ {
		nonce, failure := heard(), (*rpcstatus.Status)(nil)
		switch s.next() % 5 {
		case 0:
			nonce = ""
		case 1:
			nonce = "garbage"
		case 2:
			failure = nack("in route 80: " + hostNameA)
		}
		if err := send(nonce, failure); err != nil {
			break
		}
		switch s.next() % 8 {
		case 0:
			r.edit(meshtest.Endpoints("default", hostA, 80, fmt.Sprintf("10.7.0.%d", 1+i%200)))
		case 1:
			r.edit(virtualService(fmt.Sprint("v", i%2), hostA), changedRouteConfigs())
		case 2:
			r.change(nil, append(basicMesh()[2:], changedRouteConfigs()))
		case 3:
			r.edit(basicMesh()[2:]...)
		}
		if _, bytes, names := r.ADS.Kept(); bytes < 0 || bytes > fuzzedNameBytes+5000+64 || names > fuzzedNameBytes/16 {
			return fmt.Errorf("a stream keeps %d names and is charged for %d bytes", names, bytes)
		}
	}
	if err := leave(); err != nil {
		return err
	}
	if err := <-ended; status.Code(err) == codes.Internal {
		return err
	}
	return nil
}

// quiet waits until the server keeps nothing of the clients.
func (r *fixture) quiet() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		if streams, _, _ := r.ADS.Kept(); streams == 0 && r.ADS.Unsent() == 0 && r.ADS.Waiting() == 0 && r.ADS.NamesBytes() == 0 {
			return nil
		}
	}
	streams, _, _ := r.ADS.Kept()
	return fmt.Errorf("%d streams, %d bytes, %d waiting and %d bytes of names are left", streams, r.ADS.Unsent(), r.ADS.Waiting(),
		r.ADS.NamesBytes())
}

func FuzzClient(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0})
	f.Add([]byte{0, 1, 0, 3, 1, 4, 0, 0, 0, 4, 0, 2, 4, 1, 12, 0})
	f.Add([]byte{1, 0, 0, 1, 2, 16, 18, 0, 3, 2, 1, 0})
	r := fuzzServer(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r.t = t
		if err := errors.Join(play(r, &script{data[:min(len(data), 2000)]}), r.quiet()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFuzzedClients(t *testing.T) {
	r := fuzzServer(t)
	for seed := range uint64(300) {
		source := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 20+source.IntN(300))
		for i := range data {
			data[i] = byte(source.Uint32()) //nolint:gosec // any byte
		}
		if err := errors.Join(play(r, &script{data}), r.quiet()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	c := r.delta("good", "default")
	c.subscribe(eds, "80|"+hostA)
	c.expect(eds, "+80|"+hostA)
}

func TestHundredMegabytesOfNames(t *testing.T) {
	r := startQuiet(t, basicMesh()...)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	flood := func(what string, request func(i int) *discovery.DeltaDiscoveryRequest) {
		c := r.delta("pod", "default")
		for i := range 110 {
			if c.stream.Send(request(i)) != nil {
				break
			}
		}
		if err := c.ended(); status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	megabyte := strings.Repeat("n", 1<<20)
	flood("one name", func(int) *discovery.DeltaDiscoveryRequest {
		return &discovery.DeltaDiscoveryRequest{TypeUrl: eds, Node: node("pod", "default"),
			ResourceNamesSubscribe: []string{strings.Repeat("n", 100<<20)}}
	})
	flood("long names", func(int) *discovery.DeltaDiscoveryRequest {
		return &discovery.DeltaDiscoveryRequest{TypeUrl: eds, Node: node("pod", "default"), ResourceNamesSubscribe: []string{megabyte}}
	})
	flood("many names", func(i int) *discovery.DeltaDiscoveryRequest {
		m := &discovery.DeltaDiscoveryRequest{TypeUrl: eds, Node: node("pod", "default")}
		for j := range 1000 {
			m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, fmt.Sprintf("%d-%d-%s", i, j, megabyte[:1000]))
		}
		return m
	})
	flood("many versions", func(i int) *discovery.DeltaDiscoveryRequest {
		m := &discovery.DeltaDiscoveryRequest{TypeUrl: fuzzedTypes[i%4], Node: node("pod", "default"),
			InitialResourceVersions: map[string]string{}}
		for j := range 2000 {
			m.InitialResourceVersions[fmt.Sprintf("%d-%d-%s", i, j, megabyte[:1000])] = "x"
		}
		return m
	})
	testkit.Eventually(t, patience, func() error {
		if after := heap(); after > before+64<<20 {
			return fmt.Errorf("%d MB more in use than before", (after-before)>>20)
		}
		return r.quiet()
	})
}
