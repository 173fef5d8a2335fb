package books

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	gatewayID = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway"
	pageID    = "spiffe://cluster.local/ns/default/sa/bookinfo-productpage"
	reviewsID = "spiffe://cluster.local/ns/default/sa/bookinfo-reviews"
)

// shop is the four services, connected as in a mesh: every request carries the identity of its caller.
type shop struct {
	page *httptest.Server
	// seen receives the headers of each request to ratings.
	seen chan http.Header
}

// client returns a client whose requests carry an identity, in place of the two sidecars.
func client(t *testing.T, id string) *Client {
	t.Helper()
	c := NewClient(nil, 5*time.Second)
	c.http.Transport = asIdentity{id: id, next: c.http.Transport}
	return c
}

type asIdentity struct {
	id   string
	next http.RoundTripper
}

func (a asIdentity) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-Client-Cert", "Hash=1;URI="+a.id)
	return a.next.RoundTrip(r)
}

func start(t *testing.T, build func(Config) (http.Handler, error), c Config) *httptest.Server {
	t.Helper()
	if c.Client == nil {
		c.Client = client(t, "")
	}
	c.Log = slog.New(slog.DiscardHandler)
	h, err := build(c)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

func newShop(t *testing.T, reviewsVersion string) shop {
	t.Helper()
	s := shop{seen: make(chan http.Header, 16)}
	ratings := start(t, func(c Config) (http.Handler, error) {
		h, err := NewRatings(c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.seen <- r.Header.Clone()
			h.ServeHTTP(w, r)
		}), err
	}, Config{Server: Server{"ratings", "v1", "ratings-v1-0"}})
	details := start(t, NewDetails, Config{Server: Server{"details", "v1", "details-v1-0"}})
	reviews := start(t, NewReviews, Config{
		Server: Server{"reviews", reviewsVersion, "reviews-" + reviewsVersion + "-0"},
		URLs:   URLs{Ratings: ratings.URL},
		Client: client(t, reviewsID),
	})
	s.page = start(t, NewProductPage, Config{
		Server: Server{"productpage", "v1", "productpage-v1-0"},
		URLs:   URLs{Details: details.URL, Reviews: reviews.URL, Ratings: ratings.URL},
		Client: client(t, pageID),
	})
	return s
}

// get sends a request as the gateway.
func get(t *testing.T, url string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("X-Forwarded-Client-Cert", "URI="+gatewayID)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func getJSON[T any](t *testing.T, url string) (int, T) {
	t.Helper()
	var out T
	status, body := get(t, url, nil)
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("%s: %v in %s", url, err, body)
	}
	return status, out
}

func TestChain(t *testing.T) {
	page := Hop{Server: Server{"productpage", "v1", "productpage-v1-0"}, Caller: gatewayID}
	details := Hop{Server: Server{"details", "v1", "details-v1-0"}, Caller: pageID}
	ratings := Hop{Server: Server{"ratings", "v1", "ratings-v1-0"}, Caller: reviewsID}
	reviews := func(v string) Hop { return Hop{Server: Server{"reviews", v, "reviews-" + v + "-0"}, Caller: pageID} }
	for version, want := range map[string][]Hop{
		"v1": {page, details, reviews("v1")},
		"v2": {page, details, reviews("v2"), ratings},
		"v3": {page, details, reviews("v3"), ratings},
	} {
		t.Run(version, func(t *testing.T) {
			status, got := getJSON[ChainAnswer](t, newShop(t, version).page.URL+"/api/v1/products/0/chain")
			if status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			if diff := cmp.Diff(want, got.Hops); diff != "" {
				t.Errorf("hops (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStarsOnThePage(t *testing.T) {
	for version, want := range map[string]string{"v1": "", "v2": "stars black", "v3": "stars red"} {
		t.Run(version, func(t *testing.T) {
			status, body := get(t, newShop(t, version).page.URL+"/productpage", nil)
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, body)
			}
			if want == "" && strings.Contains(body, `class="stars`) {
				t.Error("v1 shows stars")
			}
			for _, s := range []string{want, "reviews <strong>" + version, "The Comedy of Errors", pageID, gatewayID} {
				if !strings.Contains(body, s) {
					t.Errorf("the page lacks %q", s)
				}
			}
		})
	}
}

func TestAPI(t *testing.T) {
	base := newShop(t, "v3").page.URL + "/api/v1/products"
	self := Answer{ServedBy: Server{"productpage", "v1", "productpage-v1-0"}, Caller: gatewayID}

	_, list := getJSON[ProductsAnswer](t, base)
	if diff := cmp.Diff(ProductsAnswer{self, []Product{{"0", "The Comedy of Errors"}, {"1", "Twelfth Night"}}}, list); diff != "" {
		t.Errorf("products (-want +got):\n%s", diff)
	}
	_, product := getJSON[ProductAnswer](t, base+"/1")
	if product.Answer != self || product.Details.Title != "Twelfth Night" || product.Details.Caller != pageID {
		t.Errorf("product: %+v", product)
	}
	_, reviews := getJSON[ProductReviewsAnswer](t, base+"/0/reviews")
	if got := reviews.Reviews.Reviews[0].Rating; got == nil || *got != (Rating{Stars: 5, Color: "red"}) {
		t.Errorf("rating: %+v", got)
	}
	_, ratings := getJSON[ProductRatingsAnswer](t, base+"/0/ratings")
	if ratings.Ratings.Ratings["Reviewer2"] != 4 || ratings.Ratings.Caller != pageID {
		t.Errorf("ratings: %+v", ratings)
	}
	for _, path := range []string{"/7", "/7/reviews", "/7/ratings", "/7/chain", "/..%2f0"} {
		if status, body := get(t, base+path, nil); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestHeadersReachTheLastHop(t *testing.T) {
	s := newShop(t, "v2")
	sent := http.Header{
		"Traceparent":   {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"X-B3-Traceid":  {"0af7651916cd43dd"},
		"B3":            {"0af7651916cd43dd-b7ad6b7169203331-1"},
		"X-Request-Id":  {"e1"},
		"End-User":      {"jason"},
		"Authorization": {"Bearer secret"},
		"Cookie":        {"session=secret"},
	}
	want := sent.Clone()
	if status, body := get(t, s.page.URL+"/api/v1/products/0/reviews", sent); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	got := <-s.seen
	for name, values := range want {
		if name == "Authorization" || name == "Cookie" {
			if got.Get(name) != "" {
				t.Errorf("%s was handed on", name)
			}
			continue
		}
		if diff := cmp.Diff(values, got.Values(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestUpstreamsAway(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	faulty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "fault filter abort", http.StatusServiceUnavailable)
	}))
	t.Cleanup(faulty.Close)
	nonsense := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>")
	}))
	t.Cleanup(nonsense.Close)

	for name, at := range map[string]string{"refused": gone.URL, "503": faulty.URL, "no JSON": nonsense.URL} {
		t.Run(name, func(t *testing.T) {
			reviews := start(t, NewReviews, Config{Server: Server{"reviews", "v3", "r"}, URLs: URLs{Ratings: at}})
			page := start(t, NewProductPage,
				Config{Server: Server{"productpage", "v1", "p"}, URLs: URLs{Details: at, Reviews: reviews.URL, Ratings: at}})

			status, body := get(t, page.URL+"/productpage", nil)
			if status != http.StatusOK {
				t.Fatalf("the page failed as a whole: %d %s", status, body)
			}
			for _, s := range []string{"details are unavailable", "Ratings are unavailable"} {
				if !strings.Contains(body, s) {
					t.Errorf("the page lacks %q", s)
				}
			}
			status, chain := getJSON[ChainAnswer](t, page.URL+"/api/v1/products/0/chain")
			if status != http.StatusServiceUnavailable {
				t.Errorf("chain: status %d", status)
			}
			for _, h := range chain.Hops {
				if failed := h.Service == "details" || h.Service == "ratings"; failed != (h.Error != "") {
					t.Errorf("hop %+v", h)
				}
			}
			if status, body := get(t, page.URL+"/api/v1/products/0", nil); status < 500 {
				t.Errorf("details: %d %s", status, body)
			}
		})
	}
}

func TestCallsGoThroughTheProxy(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		writeJSON(w, http.StatusOK, DetailsAnswer{Book: stock[0]})
	}))
	t.Cleanup(proxy.Close)
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	page := start(t, NewProductPage, Config{URLs: *DefaultURLs(), Client: NewClient(http.ProxyURL(at), 5*time.Second)})
	if status, body := get(t, page.URL+"/api/v1/products/0", nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if diff := cmp.Diff([]string{"http://details:9080/details/0"}, asked); diff != "" {
		t.Errorf("asked of the proxy (-want +got):\n%s", diff)
	}
}

func TestSignIn(t *testing.T) {
	s := newShop(t, "v2")
	page, err := url.Parse(s.page.URL)
	if err != nil {
		t.Fatal(err)
	}
	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for name, want := range map[string]int{"jason": http.StatusSeeOther, "": http.StatusBadRequest, "a b\r\nx: y": http.StatusBadRequest} {
		res, err := noRedirect.PostForm(page.JoinPath("login").String(), url.Values{"username": {name}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("user %q: status %d, want %d", name, res.StatusCode, want)
		}
		if want != http.StatusSeeOther {
			continue
		}
		_, body := get(t, s.page.URL+"/productpage", http.Header{"Cookie": {res.Cookies()[0].String()}})
		if !strings.Contains(body, "<strong>jason</strong>") {
			t.Error("the page does not greet the user")
		}
		if got := (<-s.seen).Get("End-User"); got != "jason" {
			t.Errorf("ratings saw end-user %q", got)
		}
	}
}

func TestPageEscapes(t *testing.T) {
	s := newShop(t, "v1")
	_, body := get(t, s.page.URL+"/productpage", http.Header{"End-User": {"<script>alert(1)</script>"}})
	if strings.Contains(body, "<script>") {
		t.Error("the page takes over markup of a header")
	}
}

func TestUnknownVersion(t *testing.T) {
	_, err := NewReviews(Config{Server: Server{"reviews", "v9", "p"}})
	if err == nil || !strings.Contains(err.Error(), `"v9"`) || !strings.Contains(err.Error(), "v1 v2 v3") {
		t.Errorf("error %v names neither the version nor the choice", err)
	}
}

func TestAssets(t *testing.T) {
	base := newShop(t, "v1").page.URL
	for path, want := range map[string]int{"/static/bookinfo.css": 200, "/static/nothing": 404, "/healthz": 200, "/nothing": 404} {
		if status, _ := get(t, base+path, nil); status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
	}
	if _, body := get(t, base+"/productpage", nil); strings.Contains(body, "http://") || strings.Contains(body, "https://") {
		t.Error("the page loads something from elsewhere")
	}
}
