package sts

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/agenttest"
)

// plugin counts exchanges, and fails with err if that is set.
type plugin struct {
	clock *testkit.Clock
	life  time.Duration
	err   error
	calls atomic.Int32
}

func (p *plugin) Exchange(_ context.Context, r Request) (Token, error) {
	n := p.calls.Add(1)
	if p.err != nil {
		return Token{}, p.err
	}
	return Token{fmt.Sprintf("token %d for %s", n, r.Audience), p.clock.Now().Add(p.life)}, nil
}

func newServer(t *testing.T, p *plugin) (*Server, string) {
	t.Helper()
	s, err := New(Config{Plugin: p, Clock: p.clock, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	return s, "http://" + s.lis[0].Addr().String() + Path
}

func newPlugin() *plugin { return &plugin{clock: testkit.NewClock(time.Now()), life: time.Hour} }

// form is a good request with changes; an empty value removes a parameter.
func form(changes ...string) url.Values {
	v := url.Values{"grant_type": {grantTokenExchange}, "subject_token": {"a.b.c"}, "subject_token_type": {typeJWT}, "audience": {"one"},
		"scope": {"https://scope"}}
	for i := 0; i < len(changes); i += 2 {
		v.Set(changes[i], changes[i+1])
		if changes[i+1] == "" {
			v.Del(changes[i])
		}
	}
	return v
}

type answer struct {
	status      int
	header      http.Header
	Token       string `json:"access_token"`
	Issued      string `json:"issued_token_type"`
	Type        string `json:"token_type"`
	ExpiresIn   int64  `json:"expires_in"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

func send(t *testing.T, r *http.Request) answer {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

func post(t *testing.T, to string, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

func TestTokenIsExchangedAndKeptUntilShortlyBeforeItExpires(t *testing.T) {
	p := newPlugin()
	_, to := newServer(t, p)
	get := func(changes ...string) answer { return send(t, post(t, to, form(changes...).Encode())) }
	first := get()
	if first.status != http.StatusOK || first.Token != "token 1 for one" || first.Issued != typeAccessToken || first.Type != "Bearer" ||
		first.ExpiresIn != 3600 {
		t.Errorf("got %+v", first)
	}
	if c := first.header.Get("Cache-Control"); c != "no-store" {
		t.Errorf("Cache-Control %q", c)
	}
	p.clock.Advance(54 * time.Minute)
	if again := get(); again.Token != first.Token || again.ExpiresIn != 360 {
		t.Errorf("got %+v, want the token that is kept", again)
	}
	for name, changes := range map[string][]string{"audience": {"audience", "two"}, "scope": {"scope", "x"},
		"token": {"subject_token", "d.e.f"}} {
		if other := get(changes...); other.Token == first.Token {
			t.Errorf("another %s gets the same token", name)
		}
	}
	p.clock.Advance(2 * time.Minute)
	if next := get(); next.Token == first.Token {
		t.Error("a token is given out that is about to expire")
	}
}

func TestRequestsAreChecked(t *testing.T) {
	p := newPlugin()
	s, to := newServer(t, p)
	for name, tc := range map[string]struct {
		request func(*http.Request) *http.Request
		status  int
		code    string
		says    string
	}{
		"GET": {func(r *http.Request) *http.Request { r.Method = http.MethodGet; return r }, 405, invalidRequest,
			"want POST"},
		"a foreign host": {func(r *http.Request) *http.Request { r.Host = "evil.example:80"; return r }, 400, invalidRequest,
			"want localhost"},
		"JSON": {func(r *http.Request) *http.Request { r.Header.Set("Content-Type", "application/json"); return r }, 400,
			invalidRequest, "content type"},
		"no form": {func(*http.Request) *http.Request { return post(t, to, "%zz") }, 400, invalidRequest, "not form data"},
		"a body that is too long": {func(*http.Request) *http.Request { return post(t, to, strings.Repeat("a", maxBody+1)) }, 400, invalidRequest,
			"more than"},
		"no grant":               {with(t, to, "grant_type", ""), 400, invalidRequest, "grant_type"},
		"another grant":          {with(t, to, "grant_type", "password"), 400, unsupportedGrantType, "grant_type"},
		"no token":               {with(t, to, "subject_token", ""), 400, invalidRequest, "subject_token is missing"},
		"another type":           {with(t, to, "subject_token_type", typeAccessToken), 400, invalidRequest, "subject_token_type"},
		"another type asked for": {with(t, to, "requested_token_type", typeJWT), 400, invalidRequest, "requested_token_type"},
		"another actor":          {with(t, to, "actor_token", "x"), 400, invalidRequest, "actor_token"},
		"a long token":           {with(t, to, "subject_token", strings.Repeat("a", maxToken+1)), 400, invalidRequest, "more than"},
		"a long scope":           {with(t, to, "scope", strings.Repeat("a", maxParam+1)), 400, invalidRequest, "more than"},
		"a parameter twice": {func(*http.Request) *http.Request { return post(t, to, form().Encode()+"&scope=b") }, 400, invalidRequest,
			"2 times"},
	} {
		t.Run(name, func(t *testing.T) {
			got := send(t, tc.request(post(t, to, form().Encode())))
			if got.status != tc.status || got.Error != tc.code || !strings.Contains(got.Description, tc.says) {
				t.Errorf("got %d %q %q, want %d %q %q", got.status, got.Error, got.Description, tc.status, tc.code, tc.says)
			}
		})
	}
	if n := p.calls.Load(); n != 0 {
		t.Errorf("%d exchanges", n)
	}
	for err, want := range map[error]int{Refused{"no"}: 400, errors.New("away"): 503} {
		p.err = err
		if got := send(t, post(t, to, form().Encode())); got.status != want || got.Description != err.Error() {
			t.Errorf("%v: got %+v", err, got)
		}
	}
	if n := testutil.ToFloat64(s.requests.WithLabelValues(unavailable)); n != 1 {
		t.Errorf("%g requests are counted as %s", n, unavailable)
	}
}

func with(t *testing.T, to string, changes ...string) func(*http.Request) *http.Request {
	return func(*http.Request) *http.Request { return post(t, to, form(changes...).Encode()) }
}

func TestKeptTokensAreBounded(t *testing.T) {
	p := newPlugin()
	c := newCache(p, p.clock)
	for i := range 3 * maxTokens {
		if _, err := c.get(t.Context(), Request{SubjectToken: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.held); n != maxTokens {
		t.Errorf("%d tokens are kept", n)
	}
	for k := range c.held {
		if strings.Contains(k, "token") || len(k) != 64 {
			t.Errorf("key %q", k)
		}
	}
}

func TestAnotherUserGetsNoToken(t *testing.T) {
	p := newPlugin()
	_, to := newServer(t, p)
	for uid, served := range map[int]bool{agenttest.AnotherUser: false, 0: true} {
		agenttest.As(t, uid, func() {
			conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(to, "http://"), Path))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			var b bytes.Buffer
			if err := post(t, to, form().Encode()).Write(&b); err != nil {
				t.Error(err)
			}
			_, _ = conn.Write(b.Bytes()) // the server may have closed the connection
			_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
			got := make([]byte, 15)
			n, _ := io.ReadFull(conn, got)
			if (string(got[:n]) == "HTTP/1.1 200 OK") != served {
				t.Errorf("user %d gets %q", uid, got[:n])
			}
		})
	}
	if n := p.calls.Load(); n != 1 && os.Geteuid() == 0 {
		t.Errorf("%d exchanges", n)
	}
}

// google is the part of Google's API that the plugin asks.
type google struct {
	*httptest.Server
	failures atomic.Int32
	refuse   atomic.Bool
	seen     []string
}

func newGoogle(t *testing.T) (*google, *Google) {
	t.Helper()
	g := &google{}
	g.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.seen = append(g.seen, r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(body))
		switch {
		case g.failures.Add(-1) >= 0:
			http.Error(w, "later", http.StatusServiceUnavailable)
		case g.refuse.Load():
			http.Error(w, "bad token a.b.c", http.StatusForbidden)
		case r.URL.Path == "/federated":
			_, _ = io.WriteString(w, `{"access_token": "federated", "expires_in": 3600}`)
		default:
			_, _ = fmt.Fprintf(w, `{"accessToken": "access", "expireTime": %q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
	}))
	t.Cleanup(g.Close)
	roots := x509.NewCertPool()
	roots.AddCert(g.Certificate())
	return g, NewGoogle(GoogleConfig{
		TrustDomain: "project.svc.id.goog", Provider: "https://cluster", ProjectNumber: "12", FederatedURL: g.URL + "/federated",
		AccessURL: g.URL + "/access",
		Client:    fetch.New(fetch.Config{Roots: roots, Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}),
	})
}

func TestGoogleExchangesTwice(t *testing.T) {
	g, plugin := newGoogle(t)
	g.failures.Store(1)
	got, err := plugin.Exchange(t.Context(), Request{SubjectToken: "a.b.c"})
	if err != nil || got.Value != "access" || time.Until(got.Expiry) < 50*time.Minute {
		t.Errorf("got %+v %v", got, err)
	}
	seen := strings.Join(g.seen, "\n")
	for _, want := range []string{
		`"audience":"identitynamespace:project.svc.id.goog:https://cluster"`, `"subjectToken":"a.b.c"`, "/access Bearer federated", cloudPlatform,
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("Google is not sent %s: %s", want, seen)
		}
	}
	if len(g.seen) != 3 {
		t.Errorf("%d requests, want one again after a failure", len(g.seen))
	}
}

func TestGoogleRefusesOrIsAway(t *testing.T) {
	g, plugin := newGoogle(t)
	g.refuse.Store(true)
	_, err := plugin.Exchange(t.Context(), Request{SubjectToken: "a.b.c"})
	if refused, ok := errors.AsType[Refused](err); !ok || strings.Contains(refused.Reason, "a.b.c") ||
		!strings.Contains(refused.Reason, "403") {
		t.Errorf("got %v", err)
	}
	g.failures.Store(1000)
	if _, err = plugin.Exchange(t.Context(), Request{SubjectToken: "a.b.c"}); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v", err)
	}
	own := NewGoogle(GoogleConfig{ProjectNumber: "12", Client: fetch.New(fetch.Config{})})
	if want := "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/service-12@gcp-sa-meshdataplane.iam.gserviceaccount.com:generateAccessToken"; own.cfg.AccessURL != want {
		t.Errorf("URL %s", own.cfg.AccessURL)
	}
}

// Whatever is in a request, it is answered, and only one that passes the checks reaches the plugin.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "localhost:1", "application/x-www-form-urlencoded", []byte(form().Encode()))
	f.Add("POST", "localhost:1", "application/x-www-form-urlencoded; charset=x", []byte("grant_type=&grant_type="))
	f.Add("PUT", "", "", []byte("\x00"))
	f.Fuzz(func(t *testing.T, method, host, contentType string, body []byte) {
		p := newPlugin()
		s := &Server{cfg: Config{Log: testkit.Logger(t), Clock: p.clock}, cache: newCache(p, p.clock),
			requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x"}, []string{"result"})}
		r := httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body))
		r.Method, r.Host = method, host
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		values, err := url.ParseQuery(string(body))
		good := err == nil && method == http.MethodPost && values.Get("grant_type") == grantTokenExchange && values.Get("subject_token") != ""
		if (w.Code == http.StatusOK) != (p.calls.Load() == 1) || w.Code == http.StatusOK && !good {
			t.Errorf("%d after %d exchanges", w.Code, p.calls.Load())
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("answer %q", w.Body)
		}
	})
}

func FuzzConnectionTable(f *testing.F) {
	f.Add("  0: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1337 0 1 1\n")
	f.Fuzz(func(_ *testing.T, table string) {
		_, _ = findUID(strings.NewReader(table), netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:80"))
	})
}

func TestConnectionTableNamesTheUser(t *testing.T) {
	const table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n" +
		"   0: 0100007F:0050 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0 0 1 1\n" +
		"   1: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1337 0 2 1\n"
	own, other := netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:80")
	if uid, err := findUID(strings.NewReader(table), own, other); err != nil || uid != 1337 {
		t.Errorf("got %d %v", uid, err)
	}
	if _, err := findUID(strings.NewReader(table), own, own); err == nil {
		t.Error("a connection that is not there has a user")
	}
}

// The kernel names root for a socket that is closed, whoever has opened it.
func TestClosedConnectionHasNoUser(t *testing.T) {
	lis := testkit.LoopbackListener(t)
	client, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	served, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if uid, err := peerUID(served); err != nil || uid != uint32(os.Geteuid()) {
		t.Errorf("before: %d, %v", uid, err)
	}
	if _, err := client.Write([]byte("POST /token")); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if uid, err := peerUID(served); err == nil {
		t.Errorf("after: user %d", uid)
	}
}
