package jwks

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/jwks"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

const (
	// DefaultTimeout is how long a fetch may take, discovery included, unless a rule says otherwise.
	DefaultTimeout = 5 * time.Second
	// MaxTimeout is the longest that a rule may say.
	MaxTimeout = 30 * time.Second
	minTimeout = 100 * time.Millisecond
	// rootsEvery is how often the file of further roots is read.
	rootsEvery = time.Minute
	// maxRoots bounds it, in bytes.
	maxRoots = 1 << 20
	// discoveryPath is that of OpenID Connect Discovery 1.0, behind an issuer.
	discoveryPath = "/.well-known/openid-configuration"
)

// FetcherConfig of a Fetcher.
type FetcherConfig struct {
	Addresses fetch.Addresses
	// RootsFile has roots in PEM that verify servers besides the system's; "" if there are none. It is read again when
	// it changes.
	RootsFile string
	Clock     clock.Clock
	Log       *slog.Logger
}

// Fetcher reads key sets, and discovery documents that name them. It is safe for concurrent use.
type Fetcher struct {
	cfg FetcherConfig

	mu     sync.Mutex
	client *fetch.Client
	roots  []byte
	readAt time.Time
}

// NewFetcher makes a Fetcher. It fails if RootsFile cannot be read.
func NewFetcher(c FetcherConfig) (*Fetcher, error) {
	f := &Fetcher{cfg: c}
	if c.RootsFile == "" {
		f.client = f.newClient(nil)
		return f, nil
	}
	return f, f.readRoots()
}

// newClient follows redirects from http to https, and not the other way round.
func (f *Fetcher) newClient(roots *x509.CertPool) *fetch.Client {
	return fetch.New(fetch.Config{Addresses: f.cfg.Addresses, Plain: true, Roots: roots, Timeout: MaxTimeout, MaxBytes: jwks.MaxBytes})
}

// readRoots makes a client with the roots of the file if they have changed.
func (f *Fetcher) readRoots() error {
	f.readAt = f.cfg.Clock.Now()
	raw, err := fileio.Read(f.cfg.RootsFile, maxRoots)
	if err != nil {
		return err
	}
	if f.client != nil && bytes.Equal(raw, f.roots) {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // of an image without any
	}
	if !pool.AppendCertsFromPEM(raw) {
		return fmt.Errorf("%s: no certificate in PEM", f.cfg.RootsFile)
	}
	f.client, f.roots = f.newClient(pool), raw
	return nil
}

// current is the client with the newest good roots.
func (f *Fetcher) current() *fetch.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg.RootsFile != "" && f.cfg.Clock.Now().Sub(f.readAt) >= rootsEvery {
		if err := f.readRoots(); err != nil {
			f.cfg.Log.Warn("roots for key servers cannot be read; the former ones count", "error", err)
		}
	}
	return f.client
}

// answer is the outcome of an attempt: keys, or a problem with its error.
type answer struct {
	set jwks.Set
	// maxAge is what the answer says of its freshness; stated is false if it says nothing.
	maxAge  time.Duration
	stated  bool
	problem configv1.JwksProblem
	err     error
}

func failed(problem configv1.JwksProblem, err error) answer {
	return answer{problem: problem, err: err}
}

// fetch fetches the keys of a source.
func (f *Fetcher) fetch(ctx context.Context, source contract.KeySource) answer {
	client := f.current()
	address := source.URI
	if source.Issuer != "" {
		document, bad := get(ctx, client, strings.TrimSuffix(source.Issuer, "/")+discoveryPath)
		if bad != nil {
			return *bad
		}
		var names struct {
			JWKSURI string `json:"jwks_uri"`
		}
		if err := json.Unmarshal(document.Body, &names); err != nil || names.JWKSURI == "" {
			return failed(configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE, errors.New("the issuer's discovery document names no jwks_uri"))
		}
		if strings.HasPrefix(source.Issuer, "https:") && !strings.HasPrefix(names.JWKSURI, "https:") {
			return failed(configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN,
				fmt.Errorf("the issuer's discovery document names jwks_uri %q, which is not https as the issuer is", names.JWKSURI))
		}
		address = names.JWKSURI
	}
	document, bad := get(ctx, client, address)
	if bad != nil {
		return *bad
	}
	set, err := jwks.Parse(document.Body)
	if err != nil {
		return answer{set: set, problem: configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE, err: err}
	}
	out := answer{set: set}
	out.maxAge, out.stated = freshness(document.Header)
	return out
}

// get reads a document. What a server says besides is nobody's business: its text is not in the error.
func get(ctx context.Context, client *fetch.Client, address string) (fetch.Answer, *answer) {
	bad := func(problem configv1.JwksProblem, err error) (fetch.Answer, *answer) {
		a := failed(problem, err)
		return fetch.Answer{}, &a
	}
	u, err := url.Parse(address)
	if err == nil {
		err = client.Check(u)
	}
	if err != nil {
		return bad(configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return bad(configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN, err)
	}
	r.Header.Set("Accept", "application/json")
	a, err := client.Do(r)
	switch {
	case errors.Is(err, fetch.ErrForbidden):
		return bad(configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN, err)
	case errors.Is(err, fileio.ErrTooLarge):
		return bad(configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE, err)
	case err != nil:
		return bad(configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE, err)
	case a.Status < 200 || a.Status > 299:
		return bad(configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE, fmt.Errorf("%s answers %d", u.Redacted(), a.Status))
	}
	return a, nil
}

// freshness is how long an answer may be kept (RFC 9111, section 5.2.2); a time of 0 means not at all.
func freshness(h http.Header) (maxAge time.Duration, stated bool) {
	for _, line := range h.Values("Cache-Control") {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
			switch strings.ToLower(name) {
			case "no-store", "no-cache":
				return 0, true
			case "max-age":
				seconds, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32)
				if err == nil && seconds >= 0 {
					maxAge, stated = time.Duration(seconds)*time.Second, true
				}
			}
		}
	}
	if !stated {
		return 0, false
	}
	if age, err := strconv.ParseInt(h.Get("Age"), 10, 32); err == nil && age > 0 {
		maxAge = max(maxAge-time.Duration(age)*time.Second, 0)
	}
	return maxAge, true
}
