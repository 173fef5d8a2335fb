package vault

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
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
}

// load calls f by so many goroutines for a time.
func load(t *testing.T, inFlight int, during time.Duration, f func() error) measured {
	t.Helper()
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		took  []time.Duration
		ended atomic.Bool
	)
	began := time.Now()
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
	slices.Sort(took)
	if len(took) == 0 {
		t.FailNow()
	}
	return measured{float64(len(took)) / time.Since(began).Seconds(), took[len(took)/2], took[len(took)*99/100]}
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
		"csr": csrPEM(r.CSR), "format": "pem", "exclude_cn_from_sans": true, "not_after": r.Template.NotAfter.UTC().Format(time.RFC3339),
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

// TestRealRate compares the rate of checked leaves with that of a bare HTTP client: at least 0.8 of it. The rounds of
// both alternate, and the best two in a row count, because other work on the machine slows both.
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
		load(t, 64, time.Second, send)
		load(t, 64, time.Second, issue)
		alone := load(t, 1, 2*time.Second, issue)
		alonest := load(t, 1, 2*time.Second, send)
		t.Logf("%s: alone %.0f/s, p50 %s; bare %.0f/s, p50 %s", kind, alone.rate, alone.p50, alonest.rate, alonest.p50)
		best := 0.0
		for range 5 {
			theirs := load(t, 64, 3*time.Second, send)
			ours := load(t, 64, 3*time.Second, issue)
			best = max(best, ours.rate/theirs.rate)
			t.Logf("%s: %.0f/s of %.0f/s (%.2f), p50 %s of %s, p99 %s of %s",
				kind, ours.rate, theirs.rate, ours.rate/theirs.rate, ours.p50, theirs.p50, ours.p99, theirs.p99)
		}
		if best < 0.8 {
			t.Errorf("%s: at most %.2f of Vault's own rate", kind, best)
		}
	}
}
