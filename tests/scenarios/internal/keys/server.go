package keys

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"fairlead.dev/tests/internal/wait"
)

// What a step may have become of a key: rotate makes new pairs, the others say how the set is served.
const (
	Rotate   = "rotate"
	Up       = "up"
	Down     = "down"
	Garbage  = "garbage"
	Slow     = "slow"
	Redirect = "redirect"
)

const (
	// slowness is how long an answer takes while the key is Slow.
	slowness = 30 * time.Second
	// fresh is how long a client may keep an answer, in seconds. It is short, so that what becomes of a key is seen
	// soon.
	fresh = 1
	// within bounds the reading of a request.
	within = 10 * time.Second
	// setPath is below the path that is each key's own.
	setPath       = "/jwks.json"
	discoveryPath = "/.well-known/openid-configuration"
)

// Place is where key sets are served.
type Place struct {
	// IP is the address of the machine, and Listen opens ports of it.
	IP     netip.Addr
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Certificate is that of the HTTPS servers.
	Certificate tls.Certificate
}

var errNowhere = errors.New("key sets cannot be served here")

// server is that of one key. Its ports stay the key's also while nothing listens there.
type server struct {
	// plain and secure are what listens for HTTP and for HTTPS, IP:port.
	plain, secure string
	// path begins those of the key: no scenario's addresses are those of another, whose keys may still be known.
	path string
	open []*http.Server
	wg   sync.WaitGroup
}

// URI implements format.Keys.
func (r *Ring) URI(name string, secure bool) (string, error) {
	base, err := r.base(name, secure)
	return base + setPath, err
}

// Issuer implements format.Keys.
func (r *Ring) Issuer(name string) (string, error) { return r.base(name, false) }

func (r *Ring) base(name string, secure bool) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.key(name)
	if err != nil {
		return "", err
	}
	if k.server == nil {
		if k.server, err = r.serve(name); err != nil {
			return "", fmt.Errorf("serve the set of key %s: %w", name, err)
		}
		if k.state == Down {
			k.server.close()
		}
	}
	if secure {
		return "https://" + k.server.secure + k.server.path, nil
	}
	return "http://" + k.server.plain + k.server.path, nil
}

// Change does to a key what a step says; the state of how it is served is not changed by Rotate.
func (r *Ring) Change(name, to string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.key(name)
	if err != nil {
		return err
	}
	if to == Rotate {
		next, err := r.generate(name)
		if err == nil {
			k.before, k.now = k.now, next
		}
		return err
	}
	was := k.state
	k.state = to
	switch {
	case k.server == nil || was == to:
	case to == Down:
		k.server.close()
	case was == Down:
		return k.server.listen(r, name)
	}
	return nil
}

// Close ends all servers.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.keys {
		if k.server != nil {
			k.server.close()
		}
	}
}

func (r *Ring) serve(name string) (*server, error) {
	if r.place.Listen == nil {
		return nil, errNowhere
	}
	var own [6]byte
	_, _ = rand.Read(own[:]) // never fails
	first := netip.AddrPortFrom(r.place.IP, 0).String()
	s := &server{plain: first, secure: first, path: "/" + hex.EncodeToString(own[:])}
	return s, s.listen(r, name)
}

// listen opens both ports, the ones of before if there were any.
func (s *server) listen(r *Ring, name string) error {
	for _, at := range []*string{&s.plain, &s.secure} {
		lis, err := r.place.Listen(context.Background(), "tcp", *at)
		if err != nil {
			s.close()
			return err
		}
		*at = lis.Addr().String()
		if at == &s.secure {
			lis = tls.NewListener(lis, &tls.Config{Certificates: []tls.Certificate{r.place.Certificate}, MinVersion: tls.VersionTLS12})
		}
		srv := &http.Server{Handler: handler{r, s, name}, ReadHeaderTimeout: within}
		s.open = append(s.open, srv)
		s.wg.Go(func() { _ = srv.Serve(lis) }) // it ends with close
	}
	return nil
}

// close ends the servers with all connections.
func (s *server) close() {
	for _, srv := range s.open {
		srv.Close()
	}
	s.open = nil
	s.wg.Wait()
}

// handler answers for a key.
type handler struct {
	ring   *Ring
	server *server
	name   string
}

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.ring.mu.Lock()
	k := h.ring.keys[h.name]
	state, set := k.state, k.now.set()
	h.ring.mu.Unlock()
	path, own := strings.CutPrefix(r.URL.Path, h.server.path)
	if !own || path != setPath && path != discoveryPath {
		http.NotFound(w, r)
		return
	}
	if state == Slow && wait.Pause(r.Context(), slowness) != nil {
		return
	}
	w.Header().Set("Cache-Control", fmt.Sprintf("max-age=%d", fresh))
	switch {
	case state == Garbage:
		_, _ = w.Write([]byte("this is no key set"))
	case state == Redirect:
		_, port, _ := net.SplitHostPort(h.server.plain)
		http.Redirect(w, r, "http://127.0.0.1:"+port+r.URL.Path, http.StatusFound)
	case path == discoveryPath:
		base := "http://" + h.server.plain + h.server.path
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": base, "jwks_uri": base + setPath})
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(set))
	}
}
