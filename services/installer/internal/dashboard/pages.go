// Package dashboard shows pages in a browser, through a port of this machine: those of services and of proxies' admin
// interfaces, for administrators with a key, and those of programs beside the mesh. It is what `fairlead dashboard`
// does.
package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/opsclient"
)

// maxPost bounds the body of a request to a page.
const maxPost = 1 << 20

// OpsPage shows the operations port of a service; replica names one of several, "" takes the first.
func OpsPage(ctx context.Context, mesh *meshclient.Mesh, program, replica string) (http.Handler, error) {
	list, _, err := mesh.Servers(ctx, program)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(s meshclient.Server) bool { return replica == "" || s.Name == replica })
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("no %s runs in this mesh; `fairlead verify-install` says what a cluster lacks, `fairlead logs %s` what became "+
			"of one of this machine", program, program)
	case i < 0:
		return nil, fmt.Errorf("no %s is named %q; there are %s", program, replica,
			strings.Join(lists.Map(list, func(s meshclient.Server) string { return s.Name }), ", "))
	}
	return opsHandler(list[i].Ops), nil
}

// opsHandler passes requests on to an operations port with an administrator's token. Only what reads is passed on.
func opsHandler(client *opsclient.Client) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: client.Address})
			r.Out.Header.Del("Cookie")
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	if client.HTTP != nil {
		proxy.Transport = client.HTTP.Transport
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "these pages are for reading", http.StatusMethodNotAllowed)
			return
		}
		token, err := client.Token(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		proxy.ServeHTTP(w, r)
	})
}

// AdminPage shows the admin interface of a proxy's Envoy.
func AdminPage(ctx context.Context, mesh *meshclient.Mesh, name, namespace string) (http.Handler, error) {
	admin, err := mesh.Admin(ctx, name, namespace)
	if err != nil {
		return nil, err
	}
	if _, err := admin.Get(ctx, "/ready"); err != nil && strings.Contains(err.Error(), "does not exist") {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := admin.Do(r.Context(), r.Method, r.URL.RequestURI())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		kind := "text/plain; charset=utf-8" // never what a browser guesses
		if text := bytes.TrimSpace(body[:min(len(body), 512)]); r.URL.Path == "/" && bytes.HasPrefix(text, []byte("<")) {
			kind = "text/html; charset=utf-8"
		} else if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
			kind = "application/json"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body)
	}), nil
}

// pageKey is the name of the key in the URL, and of the cookie that takes its place.
const pageKey = "fairlead-key"

// View is where pages are shown.
type View struct {
	// Listen is the address of this machine to listen on; Browser opens one.
	Listen           string
	Browser          bool
	Out, Diagnostics io.Writer
}

// Serve serves a handler, whose first page is named, until ctx ends. Whoever asks must know the key of the URL that is
// printed: the port is open to every user of the machine, and to pages in the browser, and the handler acts as an
// administrator.
func (v View) Serve(ctx context.Context, pages http.Handler, first string) error {
	l, err := net.Listen("tcp", v.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another port with --port, or 0 for any", v.Listen, err)
	}
	keys := newPageKeys()
	page := func(key string) string {
		u := url.URL{Scheme: "http", Host: shownAddress(v.Listen, l.Addr().String()), Path: first, RawQuery: pageKey + "=" + key}
		return u.String()
	}
	v.announce(ctx, page(keys.printed), page(keys.once))
	log := slog.New(slog.NewTextHandler(v.Diagnostics, nil))
	return ops.HTTP{Listener: l, Handler: http.MaxBytesHandler(keys.guard(pages), maxPost), Log: log}.Serve(ctx)
}

// pageKeys are the keys of one run. The printed one is for the terminal's user. The other users of the machine see the
// arguments of programs, so that the browser is started with a key that counts once; cookies have a key of their own.
type pageKeys struct {
	printed, once, cookie string

	used atomic.Bool
}

func newPageKeys() *pageKeys {
	return &pageKeys{printed: rand.Text(), once: rand.Text(), cookie: rand.Text()}
}

func equalKeys(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// opens reports whether a key in a URL lets its user in.
func (k *pageKeys) opens(key string) bool {
	return equalKeys(key, k.printed) || equalKeys(key, k.once) && k.used.CompareAndSwap(false, true)
}

// guard lets requests through that have the key: the first in its URL, whose answer sets a cookie and leads to the URL
// without it. A browser sends the cookie to all ports of the machine, and with what pages of other ports ask for: of
// those, only what reads is let through.
func (k *pageKeys) guard(pages http.Handler) http.Handler {
	pages = http.NewCrossOriginProtection().Handler(pages)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if given := query.Get(pageKey); given != "" && k.opens(given) {
			query.Del(pageKey)
			http.SetCookie(w, &http.Cookie{Name: pageKey, Value: k.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, (&url.URL{Path: r.URL.Path, RawQuery: query.Encode()}).String(), http.StatusFound)
			return
		}
		if !slices.ContainsFunc(r.CookiesNamed(pageKey), func(c *http.Cookie) bool { return equalKeys(c.Value, k.cookie) }) {
			http.Error(w, "open the URL that `fairlead dashboard` has printed: it holds the key of these pages", http.StatusForbidden)
			return
		}
		pages.ServeHTTP(w, r)
	})
}
