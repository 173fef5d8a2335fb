package vault

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
)

// measured is one round of a load.
type measured struct {
	rate     float64
	p50, p99 time.Duration
	// client and vault are the CPU time of both processes for each request.
	client, vault time.Duration
}

func (m measured) String() string {
	return fmt.Sprintf("%.0f/s, p50 %s, p99 %s, CPU %s and Vault's %s", m.rate, m.p50.Round(10*time.Microsecond),
		m.p99.Round(10*time.Microsecond), m.client.Round(time.Microsecond), m.vault.Round(time.Microsecond))
}

// load calls f by so many goroutines for a time.
func (s *server) load(t *testing.T, inFlight int, during time.Duration, f func() error) measured {
	t.Helper()
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		took  []time.Duration
		ended atomic.Bool
	)
	client, vault, began := ownCPU(t), s.cpu(t), time.Now()
	for range inFlight {
		all.Go(func() {
			var own []time.Duration
			for !ended.Load() {
				start := time.Now()
				if err := f(); err != nil {
					t.Error(err)
					return
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			took = append(took, own...)
			mu.Unlock()
		})
	}
	time.Sleep(during)
	ended.Store(true)
	all.Wait()
	if len(took) == 0 {
		t.FailNow()
	}
	n := time.Duration(len(took))
	m := measured{rate: float64(n) / time.Since(began).Seconds(), client: (ownCPU(t) - client) / n, vault: (s.cpu(t) - vault) / n}
	slices.Sort(took)
	m.p50, m.p99 = took[n/2], took[n*99/100]
	return m
}

// ownCPU is the CPU time that this process has used.
func ownCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	testkit.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpu is the CPU time that Vault has used, to a hundredth of a second (proc(5), fields 14 and 15 of stat).
func (s *server) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
	testkit.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		testkit.NoError(t, err)
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

// bare returns a function that sends to Vault the request that Issue sends, and only reads the answer.
func bare(t *testing.T, cfg Config, token string, r *signer.Request) func() error {
	t.Helper()
	roots, err := readRoots(cfg.CAFile)
	testkit.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 64,
	}}
	t.Cleanup(client.CloseIdleConnections)
	body, err := json.Marshal(map[string]any{
		"csr": csrPEM(r.CSR), "format": "der", "exclude_cn_from_sans": true, "not_after": r.Template.NotAfter.UTC().Format(time.RFC3339),
		"uri_sans": []string{r.Template.URIs[0].String()},
	})
	testkit.NoError(t, err)
	url := cfg.Address + "/v1/" + cfg.Mount + "/issuer/default/sign/mesh"
	return func() error {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("X-Vault-Token", token)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d, %w", resp.StatusCode, err)
		}
		return nil
	}
}

// TestRealRate compares the rate of checked leaves with that of a bare HTTP client: at least 0.8 of it where client and
// Vault share the machine. That is judged by the CPU time of both, which other work on the machine does not change; the
// rates are logged.
func TestRealRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a load; run without -short")
	}
	s := ownServer(t)
	for _, kind := range []string{"ec", "rsa"} {
		mount, root := s.pki(t, kind)
		s.role(t, mount, nil)
		cfg, token := s.newToken(t, mount, api.TokenCreateRequest{})
		i := newTestIssuer(t, cfg, deps(t))
		r := request(t)
		issue := func() error { return issueAndCheck(context.Background(), i, r, root) }
		send := bare(t, cfg, token, r)
		s.load(t, 64, time.Second, send)
		s.load(t, 64, time.Second, issue)
		t.Logf("%s, alone: %s; bare: %s", kind, s.load(t, 1, 2*time.Second, issue), s.load(t, 1, 2*time.Second, send))
		var ours, theirs, vaults time.Duration
		for range 4 {
			b, m := s.load(t, 64, 3*time.Second, send), s.load(t, 64, 3*time.Second, issue)
			t.Logf("%s, 64 in flight: %s; bare: %s", kind, m, b)
			// Vault does the same for both.
			ours, theirs, vaults = ours+m.client, theirs+b.client, vaults+(b.vault+m.vault)/2
		}
		if share := float64(vaults+theirs) / float64(vaults+ours); share < 0.8 {
			t.Errorf("%s: %.2f of Vault's own rate", kind, share)
		} else {
			t.Logf("%s: %.2f of Vault's own rate", kind, share)
		}
	}
}
