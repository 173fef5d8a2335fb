package kubecsr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kuberequest/kubetest"
)

// killed kills a process with kill -9 while its objects are in the cluster; another one deletes them, and not its own.
func killed(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	file := filepath.Join(t.TempDir(), "config.json")
	cluster := s.Config("ca")
	text, err := json.Marshal(map[string]any{"config": cfg, "host": cluster.Host, "ca": cluster.CAFile, "requests": 5})
	testkit.NoError(t, err)
	testkit.WriteFile(t, file, text)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestAgainstKubernetes$")
	child.Env = append(os.Environ(), childVariable+"="+file)
	var output testkit.Buffer
	child.Stdout, child.Stderr = &output, &output
	testkit.NoError(t, child.Start())
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := len(c.names(t)); n != 5 {
			return fmt.Errorf("%d objects: %s", n, output.String())
		}
		return nil
	})
	testkit.NoError(t, child.Process.Kill())
	_ = child.Wait()

	times := testkit.NewClock(time.Now())
	i, _ := start(t, s, cfg, times)
	known(t, i)
	r := kubetest.Request(t, "shop", "web", nil)
	r.Profile = "silent"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := i.Issue(ctx, r)
		done <- err
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		times.Advance(10 * time.Second) // the roots are read every 10 s; orphans are those of 5 min
		if n := len(c.names(t)); n != 1 {
			return fmt.Errorf("%d objects, wanted that of the request under way", n)
		}
		return nil
	})
	select {
	case err := <-done:
		t.Errorf("the request under way ended: %v", err)
	default:
	}
	cancel()
	<-done
	c.empty(t)
}

// childVariable names the file of the process that killed kills.
const childVariable = "KUBECSR_TEST_CHILD"

// child makes requests that nobody answers.
func child(t *testing.T) {
	text, err := os.ReadFile(os.Getenv(childVariable))
	testkit.NoError(t, err)
	var file struct {
		Config   Config
		Host, CA string
		Requests int
	}
	testkit.NoError(t, json.Unmarshal(text, &file))
	file.Config.Timeout.Duration = time.Minute
	i, err := New(file.Config, signer.Deps{Clock: clock.Real(), Log: testkit.Logger(t)}, &rest.Config{Host: file.Host, BearerToken: "ca",
		TLSClientConfig: rest.TLSClientConfig{CAFile: file.CA, ServerName: "kubernetes"}})
	testkit.NoError(t, err)
	go func() { _ = i.Run(t.Context()) }()
	known(t, i)
	var running sync.WaitGroup
	for range file.Requests {
		r := kubetest.Request(t, "shop", "web", nil)
		r.Profile = "silent"
		running.Go(func() { _, _ = i.Issue(t.Context(), r) })
	}
	running.Wait()
}

// counter counts requests and watches by a client.
type counter struct {
	next              http.RoundTripper
	requests, watches atomic.Int64
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		c.watches.Add(1)
	} else {
		c.requests.Add(1)
	}
	return c.next.RoundTrip(r)
}

// burst sends 500 requests at once, with the default limits.
func burst(t *testing.T, s *kubetest.Server, c *controller) {
	cfg := config(t, c)
	cfg.Timeout.Duration = time.Minute
	count := &counter{}
	cluster := s.Config("ca")
	cluster.Wrap(func(next http.RoundTripper) http.RoundTripper { count.next = next; return count })
	i, _ := startWith(t, cluster, cfg, clock.Real())
	known(t, i)
	const n = 500
	var mu sync.Mutex
	var took []time.Duration
	most := 0
	watching, stop := context.WithCancel(t.Context())
	var running, looking sync.WaitGroup
	looking.Go(func() {
		for watching.Err() == nil {
			most = max(most, len(c.names(t)))
			time.Sleep(50 * time.Millisecond)
		}
	})
	requests := make([]*signer.Request, n)
	for k := range requests {
		requests[k] = kubetest.Request(t, "shop", fmt.Sprint("web-", k), nil)
	}
	began := time.Now()
	for _, r := range requests {
		running.Go(func() {
			chain, err := i.Issue(t.Context(), r)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			if err != nil {
				t.Error(err)
			} else if chain[0].URIs[0].String() != r.Identity.String() {
				t.Errorf("%s got the certificate of %s", r.Identity, chain[0].URIs[0])
			}
		})
	}
	running.Wait()
	all := time.Since(began)
	c.empty(t)
	stop()
	looking.Wait()
	slices.Sort(took)
	t.Logf("%d leaves in %s: half in %s, 99%% in %s; %d requests and %d watches, %d objects at most; none is left after %s", n, all,
		took[n/2], took[n*99/100], count.requests.Load(), count.watches.Load(), most, time.Since(began))
	// The API server ends a watch that does not keep up, and a new one goes on where it was.
	if w := count.watches.Load(); w > n/10 {
		t.Errorf("%d watches, wanted one at a time", w)
	}
	if most > 100 {
		t.Errorf("%d objects at once, wanted at most 100", most)
	}
}

// away kills the API server while a request is under way, which is answered when it is back, as are later ones.
func away(t *testing.T, s *kubetest.Server, c *controller, i signer.Issuer) {
	cfg := config(t, c)
	cfg.Timeout.Duration = time.Minute
	patient, _ := start(t, s, cfg, clock.Real())
	known(t, patient)
	c.delay.Store(int64(2 * time.Second))
	slow := make(chan error, 1)
	go func() {
		_, err := patient.Issue(t.Context(), kubetest.Request(t, "shop", "slow", nil))
		slow <- err
	}()
	testkit.Eventually(t, testkit.Patience, func() error {
		list, err := c.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(list.Items) == 0 || len(list.Items[0].Status.Conditions) == 0) {
			err = errors.New("no approved object yet")
		}
		return err
	})
	s.Kill()
	c.delay.Store(0)
	_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Away, "create a CertificateSigningRequest: the API server does not answer")
	fresh, _ := start(t, s, cfg, clock.Real())
	known(t, fresh) // roots are in a file
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = fresh.Issue(ctx, kubetest.Request(t, "shop", "web", nil))
	wantError(t, err, signer.Away, "watch certificatesigningrequests.certificates.k8s.io")
	s.Resume(t)
	began := time.Now()
	for _, i := range []signer.Issuer{i, fresh} {
		testkit.Eventually(t, testkit.Patience, func() error {
			_, err := i.Issue(t.Context(), kubetest.Request(t, "shop", "web", nil))
			return err
		})
	}
	t.Logf("issued %s after the API server was ready", time.Since(began))
	if err := <-slow; err != nil {
		t.Errorf("the request that was under way: %v", err)
	}
	c.empty(t)
}
