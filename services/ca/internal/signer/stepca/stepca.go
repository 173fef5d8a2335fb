// Package stepca signs leaves by the HTTP API of Smallstep's step-ca: for each certificate the ca makes a one-time
// token with the key of a provisioner, which says what step-ca may sign.
package stepca

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

const (
	// pollEvery is how often the roots are fetched, and pollSoon while they cannot be.
	pollEvery, pollSoon = time.Minute, 5 * time.Second
	// connections are kept for requests at once.
	connections = 64
)

// Signer is a signer.Issuer.
type Signer struct {
	cfg     Config
	clock   clock.Clock
	log     *slog.Logger
	timeout time.Duration
	// url has no path.
	url    string
	server upstream.Service
	keys   keys
	trust  *upstream.Trust
	// client verifies step-ca. anyone verifies nobody: with it only roots are fetched, of which only those count whose
	// fingerprints are configured.
	client, anyone *http.Client
	// others are the fingerprints of the roots that fetchRoots left out last.
	others   string
	problems upstream.Problems
}

var _ signer.Issuer = (*Signer)(nil)

// New makes a Signer.
func New(cfg Config, d signer.Deps) (*Signer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	d.Clock = clock.Or(d.Clock)
	s := &Signer{
		cfg: cfg, clock: d.Clock, log: d.Log, timeout: cmp.Or(cfg.Timeout.Duration, upstream.DefaultTimeout), url: "https://" + u.Host,
		keys: keys{cfg: cfg}, trust: upstream.NewTrust(d.Clock),
		server: upstream.Service{
			Name:   "step-ca at https://" + u.Host,
			TLS:    "compare url, serverName, and rootsFile or fingerprints in the signer file with step-ca's",
			Denied: "compare provisioner, its key and its claims (lifetimes, allowed names) in ca.json with the signer file, and the clocks",
		},
	}
	name := cmp.Or(cfg.ServerName, u.Hostname())
	s.client = httpClient(tlsconf.ClientNamed(rootsOf{s.trust}, name), connections)
	s.anyone = httpClient(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: name, InsecureSkipVerify: true, //nolint:gosec // see the field
	}, 1)
	return s, nil
}

func httpClient(c *tls.Config, connections int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: c, MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: upstream.DefaultTimeout,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// rootsOf is a tlsconf.Source of the roots of a Trust.
type rootsOf struct{ trust *upstream.Trust }

func (r rootsOf) Current() (*tlsconf.Material, error) {
	a, _ := r.trust.Authorities()
	if a == nil {
		return nil, errors.New("x509: no root of step-ca is known yet")
	}
	pool := x509.NewCertPool()
	for _, c := range a.Roots {
		pool.AddCert(c)
	}
	return &tlsconf.Material{Roots: pool}, nil
}

func (r rootsOf) Changed() <-chan struct{} {
	_, changed := r.trust.Authorities()
	return changed
}

// Problem is what is wrong while certificates go on being issued; nil if nothing is.
func (s *Signer) Problem() error { return s.problems.Problem() }

// Capabilities implements signer.Issuer. step-ca takes the names from the token, but only with a CSR.
func (s *Signer) Capabilities() signer.Capabilities {
	return signer.Capabilities{Extensions: s.cfg.Extensions, Validity: true, Revocation: s.cfg.CRL, Remote: true}
}

// Authorities implements signer.Issuer.
func (s *Signer) Authorities() (*signer.Authorities, <-chan struct{}) { return s.trust.Authorities() }

// Run implements signer.Issuer.
func (s *Signer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	if s.cfg.RootsFile != "" {
		all.Go(func() { s.rootsFile().Run(ctx) })
	} else {
		all.Go(func() { s.poll(ctx, "step-ca's roots", s.fetchRoots) })
	}
	if s.cfg.CRL {
		all.Go(func() { s.poll(ctx, "step-ca's list of revoked certificates", s.fetchCRL) })
	}
	all.Wait()
	s.client.CloseIdleConnections()
	s.anyone.CloseIdleConnections()
	return nil
}

func (s *Signer) rootsFile() upstream.RootsFile {
	return upstream.RootsFile{Path: s.cfg.RootsFile, Trust: s.trust, Problems: &s.problems, Clock: s.clock, Log: s.log}
}

// poll calls fetch at intervals until ctx ends, and logs errors that it has not just logged.
func (s *Signer) poll(ctx context.Context, what string, fetch func(context.Context) error) {
	for ctx.Err() == nil {
		wait, err := pollEvery, fetch(ctx)
		if err != nil {
			wait = pollSoon
		}
		if ctx.Err() == nil && s.problems.Set(what, err) && err != nil {
			s.log.Warn("what verifies step-ca's certificates cannot be fetched; the last good state stays", "what", what, "error", err)
		}
		if !clock.Sleep(ctx, s.clock, wait) {
			return
		}
	}
}

func (s *Signer) get(ctx context.Context, client *http.Client, path string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	return s.do(client, req, most)
}

// fetchCRL sets the list of revoked certificates. Before the first certificate has been issued, mostly nothing is known
// that verifies it.
func (s *Signer) fetchCRL(ctx context.Context) error {
	body, err := s.get(ctx, s.client, "/1.0/crl", upstream.MaxCRLBytes)
	if err != nil {
		return err
	}
	return s.trust.SetCRLs([][]byte{body})
}

// fetchRoots sets the roots. One that was fetched stays, whatever is fetched later: nobody was verified, and the signer
// file decides which roots count.
func (s *Signer) fetchRoots(ctx context.Context) error {
	body, err := s.get(ctx, s.anyone, "/roots", upstream.MaxAnswer)
	if err != nil {
		return err
	}
	roots, others, err := pinned(body, s.cfg.Fingerprints)
	if err != nil {
		return fmt.Errorf("%s: %w", s.server.Name, err)
	}
	if known, _ := s.trust.Authorities(); known != nil {
		more := lists.Filter(roots, func(c *x509.Certificate) bool { return !slices.ContainsFunc(known.Roots, c.Equal) })
		roots = slices.Concat(known.Roots, more)
	}
	if err := s.trust.SetRoots(roots); err != nil {
		return fmt.Errorf("%s: %w", s.server.Name, err)
	}
	if now := strings.Join(others, ", "); now != s.others {
		s.others = now
		s.log.Warn("step-ca's other roots than those of the signer file have changed; if its operator confirms them, add their fingerprints",
			"fingerprints", now)
	}
	return nil
}

// Issue implements signer.Issuer.
func (s *Signer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	if len(r.CSR) == 0 {
		return nil, signer.Errorf(signer.Unsuitable, "%s needs a CSR for every certificate; send one with the request", s.server.Name)
	}
	if r.Profile != "" {
		return nil, signer.Errorf(signer.Unsuitable, "metadata field CertSigner: %q is no profile of this signer, which has none; leave it out",
			upstream.Quote(r.Profile))
	}
	k, err := s.keys.current()
	if err != nil {
		return nil, signer.Errorf(signer.Refused, "the provisioner's key: %w", err)
	}
	token, err := k.token(s.claimsOf(r, s.clock.Now()))
	if err != nil {
		return nil, signer.Errorf(signer.Refused, "%w", err)
	}
	// Without notBefore step-ca allows for its own clock skew, and counts it as no part of the lifetime.
	asked, err := json.Marshal(map[string]string{
		"csr": upstream.PEM(r.CSR), "ott": token, "notAfter": r.Template.NotAfter.UTC().Format(time.RFC3339),
	})
	if err != nil {
		return nil, signer.Errorf(signer.Unsuitable, "request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/1.0/sign", bytes.NewReader(asked))
	if err != nil {
		return nil, signer.Errorf(signer.Away, "request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	body, err := s.do(s.client, req, upstream.MaxAnswer, token, r.Token)
	if err != nil {
		return nil, err
	}
	chain, err := chainOf(s.server.Name, body)
	if err != nil {
		return nil, err
	}
	s.trust.Learn(chain)
	return chain, nil
}

// do returns the body of a success, of at most so many bytes. secrets may be in no error.
func (s *Signer) do(client *http.Client, req *http.Request, most int64, secrets ...string) ([]byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, s.server.HTTPFailure(err, secrets...)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, s.server.HTTPFailure(err, secrets...)
	case int64(len(body)) > most:
		return nil, signer.Errorf(signer.Lied, "%s answered with more than %d bytes", s.server.Name, most)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated:
		return nil, s.server.HTTPError(resp.StatusCode, resp.Header, said(body), secrets...)
	}
	return body, nil
}

// said is the message of an error, or the whole of an answer that has none.
func said(body []byte) string {
	var failure struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &failure) == nil && failure.Message != "" {
		return failure.Message
	}
	return string(body)
}

// chainOf reads the answer of /1.0/sign.
func chainOf(who string, body []byte) ([]*x509.Certificate, error) {
	var answer struct {
		Leaf  string   `json:"crt"`
		CA    string   `json:"ca"`
		Chain []string `json:"certChain"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, signer.Errorf(signer.Lied, "%s answered with what is no certificate: %s", who, upstream.Quote(err.Error()))
	}
	if len(answer.Chain) == 0 {
		answer.Chain = slices.DeleteFunc([]string{answer.Leaf, answer.CA}, func(s string) bool { return s == "" })
	}
	return upstream.Chain(who, answer.Chain...)
}

// pinned reads the answer of /roots, and returns the roots with one of the fingerprints and the fingerprints of others.
func pinned(body []byte, fingerprints []string) (roots []*x509.Certificate, others []string, err error) {
	var answer struct {
		Certs []string `json:"crts"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, nil, fmt.Errorf("/roots has no list of certificates: %s", upstream.Quote(err.Error()))
	}
	all, err := upstream.Roots(answer.Certs...)
	if err != nil {
		return nil, nil, fmt.Errorf("/roots: %w", err)
	}
	for _, c := range all {
		found := upstream.Fingerprint(c)
		if slices.ContainsFunc(fingerprints, func(f string) bool { return strings.EqualFold(f, found) }) {
			roots = append(roots, c)
		} else {
			others = append(others, found)
		}
	}
	if len(roots) == 0 {
		return nil, nil, fmt.Errorf("/roots has no root with one of the fingerprints in the signer file, but %s; compare them with step-ca's "+
			"operator", strings.Join(others, ", "))
	}
	return roots, others, nil
}
