// Package flood sends a webhook what nobody with good intentions would: as many reviews at once as it gets through,
// from several addresses, for as long as it is let.
package flood

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Attack posts Body to URL over so many connections from each of so many addresses of this machine's loopback; with no
// Addresses, from From.
type Attack struct {
	URL                    string
	Body                   []byte
	Addresses, Connections int
	From                   net.IP
}

// Start starts the attack. stop ends it and returns how often each status was answered; it fails the test if nothing
// was.
func (a Attack) Start(t *testing.T) (stop func() map[int]int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[int]int{}
	for i := range max(1, a.Addresses) {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: a.From}}
		if a.Addresses > 0 {
			from.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 66, byte(1+i))}
		}
		for range a.Connections {
			client := &http.Client{Transport: &http.Transport{
				DialContext: from.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // an attacker
			}}
			all.Go(func() {
				for ctx.Err() == nil {
					request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL, bytes.NewReader(a.Body))
					if err != nil {
						t.Error(err)
						return
					}
					request.Header.Set("Content-Type", "application/json")
					status := 0
					if answer, err := client.Do(request); err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						_ = answer.Body.Close()
						status = answer.StatusCode
					} else {
						time.Sleep(time.Millisecond) // a connection is refused at once
					}
					mu.Lock()
					answers[status]++
					mu.Unlock()
				}
			})
		}
	}
	return sync.OnceValue(func() map[int]int {
		cancel()
		all.Wait()
		if len(answers) == 0 {
			t.Error("the attack has sent nothing")
		}
		return answers
	})
}

// Watch reads a process's memory until the test ends or stop is called, which returns the most that it has had, in
// bytes. It fails the test if that is more than limit, or if the process ends.
func Watch(t *testing.T, pid int, limit int64) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	most := make(chan int64, 1)
	go func() {
		var peak int64
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			status, err := testkit.ProcessStatus(pid)
			if err != nil || status.VmRSS == 0 {
				t.Errorf("the process is gone: %v", err)
				break
			}
			peak = max(peak, int64(status.VmRSS))
			if peak > limit {
				t.Errorf("the process has %d MiB, more than its limit of %d MiB", peak>>20, limit>>20)
				break
			}
		}
		most <- peak
	}()
	return sync.OnceValue(func() int64 {
		cancel()
		return <-most
	})
}

// Victim is the namespace that the reviews claim.
const Victim = "tenant-victim"

// Matches is the review of a VirtualService with so many empty matches: half a megabyte costs hundreds to decode.
func Matches(n int) []byte {
	return review("networking.istio.io", "v1", "VirtualService", "virtualservices",
		`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"`+Victim+
			`"},"spec":{"hosts":["a"],"http":[{"route":[{"destination":{"host":"a"}}],"match":[`+
			strings.Repeat("{},", n-1)+`{}]}]}}`)
}

// Containers is the review of a Pod with so many empty containers, of which each has the size of all its fields.
func Containers(n int) []byte {
	return review("", "v1", "Pod", "pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[`+
		strings.Repeat("{},", n-1)+`{}]}}`)
}

// Variables is the review of a Pod whose container has so many variables with long names.
func Variables(n, bytes int) []byte {
	return review("", "v1", "Pod", "pods",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"a","env":[`+
			strings.Repeat(`{"name":"`+strings.Repeat("a", bytes)+`"},`, n-1)+`{"name":"b"}]}]}}`)
}

func review(group, version, kind, resource, object string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"a","operation":"CREATE","namespace":"`+Victim+`","name":"a",`+
		`"kind":{"group":%q,"version":%q,"kind":%q},"resource":{"group":%q,"version":%q,"resource":%q},"object":%s}}`, group, version, kind,
		group, version, resource, object)
}

// answersWithin is how long what is rightful may take during an attack.
const answersWithin = 2 * time.Second

// Rightful does for so long what must go on during an attack, all of it in turn, and fails the test if anything fails
// or takes more than 2 s. This machine runs attackers and attacked, and perhaps other tests, which only add time: a
// call is late if one is each of five times.
func Rightful(t *testing.T, during time.Duration, calls ...func() error) {
	t.Helper()
	var late []time.Duration
	for range 5 {
		slowest := rightful(t, during, calls)
		if slowest <= answersWithin {
			return
		}
		late = append(late, slowest)
	}
	t.Errorf("the slowest rightful calls took %s in turn, each more than %s", late, answersWithin)
}

func rightful(t *testing.T, during time.Duration, calls []func() error) (slowest time.Duration) {
	t.Helper()
	var took []time.Duration
	for began := time.Now(); time.Since(began) < during; {
		for _, call := range calls {
			asked := time.Now()
			if err := call(); err != nil {
				t.Errorf("during the attack, after %s: %v", time.Since(asked), err)
			}
			took = append(took, time.Since(asked))
		}
	}
	slices.Sort(took)
	most, slowest := took[(len(took)-1)*19/20], took[len(took)-1]
	t.Logf("of %d rightful calls 95 %% took up to %s, the slowest %s", len(took), most.Round(time.Millisecond),
		slowest.Round(time.Millisecond))
	return slowest
}
