package fetch_test

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// server answers over TLS; its client trusts it.
func server(t *testing.T, cfg fetch.Config, h http.HandlerFunc) (*httptest.Server, *fetch.Client) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	cfg.Roots = x509.NewCertPool()
	cfg.Roots.AddCert(s.Certificate())
	return s, fetch.New(cfg)
}

func TestWhatMustNotBeFetchedIsRefused(t *testing.T) {
	s, plain := server(t, fetch.Config{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	_, allowed := server(t, fetch.Config{Addresses: fetch.Addresses{Allow: loopback}}, nil)
	_, only := server(t, fetch.Config{Plain: true,
		Addresses: fetch.Addresses{Only: true, Allow: []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32")}}}, nil)
	for name, tc := range map[string]struct {
		client    *fetch.Client
		url, want string
	}{
		"loopback":                       {plain, s.URL, "loopback"},
		"a name of loopback":             {plain, "https://localhost:" + s.URL[strings.LastIndex(s.URL, ":")+1:], "loopback"},
		"metadata":                       {plain, "https://169.254.169.254/", "metadata"},
		"metadata by IPv6":               {plain, "https://[::ffff:169.254.169.254]/", "metadata"},
		"plain HTTP":                     {allowed, "http://127.0.0.1/", "want https"},
		"another scheme":                 {allowed, "file:///etc/passwd", "want https"},
		"a user":                         {allowed, "https://me:secret@127.0.0.1/", "has a user"},
		"no host":                        {allowed, "https:///x", "no host"},
		"another address than the ones":  {only, "http://10.0.0.1/", "none of"},
		"loopback where others are said": {only, "http://127.0.0.1/", "none of"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.client.Get(t.Context(), tc.url, nil)
			if !errors.Is(err, fetch.ErrForbidden) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

// A name whose owner answers another address each time leads nowhere else: what counts is the address of each
// connection, not one that was looked up before.
func TestNamesThatChangeTheirAddressLeadNowhereElse(t *testing.T) {
	var asked atomic.Int64
	testkit.Resolve(t, func() [4]byte {
		if asked.Add(1) == 1 {
			return [4]byte{127, 0, 0, 2}
		}
		return [4]byte{127, 0, 0, 1}
	})
	// The first address is allowed and nobody listens there; the second has a server, and is this machine's.
	s, c := server(t, fetch.Config{Plain: true, Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}},
		func(http.ResponseWriter, *http.Request) {
			t.Error("the server was asked")
		})
	url := "http://rebind.example.com:" + s.URL[strings.LastIndex(s.URL, ":")+1:]
	if _, err := c.Get(t.Context(), url, nil); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the first time: %v", err)
	}
	for range 3 {
		if _, err := c.Get(t.Context(), url, nil); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("later: %v", err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	s, c := server(t, fetch.Config{Addresses: fetch.Addresses{Allow: loopback}, MaxBytes: 100, Timeout: time.Second},
		func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/large":
				_, _ = w.Write(make([]byte, 101))
			case "/endless":
				<-r.Context().Done()
			case "/round":
				http.Redirect(w, r, "/round", http.StatusFound)
			case "/inside":
				http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
			case "/metadata":
				http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
			case "/refused":
				http.Error(w, "not for you", http.StatusForbidden)
			default:
				_, _ = w.Write(make([]byte, 100))
			}
		})
	for path, want := range map[string]string{
		"/large": "too large", "/endless": "deadline", "/round": "redirects", "/inside": "want https", "/metadata": "metadata",
		"/refused": `403: "not for you"`,
	} {
		if _, err := c.Get(t.Context(), s.URL+path, nil); err == nil || !strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if body, err := c.Get(t.Context(), s.URL+"/", nil); err != nil || len(body) != 100 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// A server that was asked by TLS does not send the client to where others can answer.
func TestARedirectDoesNotLeaveTLS(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	t.Cleanup(plain.Close)
	s, c := server(t, fetch.Config{Plain: true, Addresses: fetch.Addresses{Allow: loopback}}, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL, http.StatusFound)
	})
	if _, err := c.Get(t.Context(), s.URL, nil); err == nil || !strings.Contains(err.Error(), "redirect from https") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Get(t.Context(), plain.URL, nil); err != nil {
		t.Errorf("without TLS from the start: %v", err)
	}
}
