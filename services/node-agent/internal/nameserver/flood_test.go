package nameserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"fairlead.dev/pkg/testkit"
)

// While the servers of resolv.conf are away and the workload asks for outside names 2,000 times a second, names of the
// mesh are answered, and as quickly.
func TestMeshNamesWhileUpstreamIsAway(t *testing.T) {
	silent, err := net.ListenUDP(networkUDP, net.UDPAddrFromAddrPort(testkit.FreeAddress(t))) // takes all, answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	f := start(t, true, silent.LocalAddr().String())
	// Other work on the machine only adds time, and makes the kernel drop queries.
	testkit.Quick(t, 50*time.Millisecond, func() time.Duration { return f.askBesideFlood(t) })
}

// askBesideFlood returns the median of the times that names of the mesh take beside 2,000 queries a second for others.
func (f *fixture) askBesideFlood(t *testing.T) time.Duration {
	t.Helper()
	const rate, seconds = 2000, 2
	var floods sync.WaitGroup
	floods.Go(func() {
		conn, err := net.Dial(networkUDP, f.address)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		began := time.Now()
		for i := range rate * seconds {
			q := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.outside.example.", i), dns.TypeA)
			raw, err := q.Pack()
			if err == nil {
				_, err = conn.Write(raw)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i%20 == 19 {
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / rate)))
			}
		}
	})
	flooded := make(chan struct{})
	go func() { floods.Wait(); close(flooded) }()
	client := &dns.Client{Net: networkUDP, Timeout: time.Second}
	var took []time.Duration
	for asking := true; asking; {
		select {
		case <-flooded:
			asking = false
		default:
		}
		m := new(dns.Msg).SetQuestion("server.apps.svc.cluster.local.", dns.TypeA)
		answer, rtt, err := client.Exchange(m, f.address)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			took = append(took, client.Timeout)
			continue
		}
		if err != nil || answer.Rcode != dns.RcodeSuccess || len(answer.Answer) == 0 {
			t.Fatalf("after %d answers: %v, %v", len(took), answer, err)
		}
		took = append(took, rtt)
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("%d names of the mesh were answered beside %d queries for others: median %s, p99 %s", len(took), rate*seconds, p50, p99)
	if len(took) < 100 {
		return testkit.Patience
	}
	return p50
}
