package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of the time that an answer takes.
const (
	// readTimeout is for an answer that waits for nothing, bodyTimeout for its body.
	readTimeout = 30 * time.Second
	bodyTimeout = 30 * time.Second
	// waitSlack is added to the time that Consul may wait: it adds a sixteenth itself.
	waitSlack = 15 * time.Second
	// maxLastContact is how long a server may not have heard of its leader.
	maxLastContact = 5 * time.Second
)

// query says how something is read.
type query struct {
	// certain reads from the leader, which verifies that it still is the leader. It never waits.
	certain bool
	// index and wait: the answer may wait until something is newer than index.
	index uint64
	wait  time.Duration
}

func (q query) values(datacenter string) url.Values {
	v := url.Values{}
	if datacenter != "" {
		v.Set("dc", datacenter)
	}
	switch {
	case q.certain:
		v.Set("consistent", "")
	case q.index > 0:
		v.Set("index", strconv.FormatUint(q.index, 10))
		v.Set("wait", q.wait.String())
	}
	return v
}

func (q query) timeout() time.Duration {
	if q.certain || q.index == 0 {
		return readTimeout
	}
	return q.wait + q.wait/16 + waitSlack
}

var errSilent = errors.New("it does not answer in time")

// early reports whether an answer that took so long came before the time was up although nothing has changed: Consul
// answers so from before a snapshot was restored, at the moment when it is.
func (q query) early(m meta, took time.Duration) bool {
	return q.index > 0 && m.index == q.index && took < q.wait-time.Second
}

// meta is what the headers of an answer say.
type meta struct {
	index    uint64
	filtered bool
	size     int64
}

// refusal is an answer by which Consul refuses a request.
type refusal struct {
	status int
	text   string
}

// Error implements error.
func (r *refusal) Error() string {
	return fmt.Sprintf("it answers %d: %q", r.status, r.text)
}

// forbidden reports whether the credential is refused.
func forbidden(err error) bool {
	var r *refusal
	return errors.As(err, &r) && (r.status == http.StatusForbidden || r.status == http.StatusUnauthorized)
}

// client makes requests to one address with one configuration.
type client struct {
	cfg       *Config
	base      *url.URL
	transport transport
	// decoding counts the bytes of answers that are being decoded.
	decoding atomic.Int64
	counted  func()
}

// read gets a path of the API. It calls decode with the body of an answer that can be believed as far as its headers
// tell; whether the content is complete is for the caller to find out.
func (c *client) read(ctx context.Context, path string, q query, decode func(*bounded) error) (m meta, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(q.timeout(), func() { cancel(errSilent) })
	defer timeout.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
	}()
	resp, err := c.do(ctx, http.MethodGet, path, q.values(c.cfg.Datacenter), nil)
	if err != nil {
		return meta{}, err
	}
	defer resp.Body.Close()
	if m, err = check(resp, q); err != nil {
		return meta{}, err
	}
	timeout.Reset(bodyTimeout)
	from := &bounded{from: resp.Body, until: maxEntry, all: &c.decoding}
	defer from.close()
	if err := Aside(func() error { return decode(from) }); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return meta{}, fmt.Errorf("its answer to %s cannot be read: %w", path, err)
	}
	m.size = from.size
	return m, nil
}

// Aside calls a function on a stack of its own, so that the stacks of thousands of readings that wait stay small.
func Aside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

func (c *client) do(ctx context.Context, method, path string, values url.Values, content []byte) (*http.Response, error) {
	u := *c.base
	u.Path, u.RawPath = path, escape(path)
	u.RawQuery = values.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "fairlead-config-watcher")
	if token := c.token(); token != "" {
		r.Header.Set("X-Consul-Token", token)
	}
	c.counted()
	return c.transport.RoundTrip(r)
}

func (c *client) token() string {
	if c.cfg.Token == nil {
		return ""
	}
	return c.cfg.Token()
}

// escape returns the path as it is sent: a name of a service may have any character.
func escape(path string) string {
	if name, ok := strings.CutPrefix(path, servicePath); ok {
		return servicePath + url.PathEscape(name)
	}
	return path
}

// check returns why an answer cannot be believed.
func check(resp *http.Response, q query) (meta, error) {
	if err := refused(resp); err != nil {
		return meta{}, err
	}
	h := resp.Header
	if t, _, _ := mime.ParseMediaType(h.Get("Content-Type")); t != "application/json" {
		return meta{}, fmt.Errorf("it answers with content of type %q: no Consul agent is there", h.Get("Content-Type"))
	}
	index, err := strconv.ParseUint(h.Get("X-Consul-Index"), 10, 64)
	if err != nil {
		return meta{}, fmt.Errorf("it answers without X-Consul-Index (%q): no Consul agent is there, or a proxy removes it",
			h.Get("X-Consul-Index"))
	}
	m := meta{index: index, filtered: h.Get("X-Consul-Results-Filtered-By-ACLs") == "true"}
	// The agent's streaming view knows neither the leader nor the last contact, and says "false" and "0".
	streamed := h.Get("X-Consul-Query-Backend") == "streaming"
	switch leader := h.Get("X-Consul-KnownLeader"); {
	case q.certain && (streamed || h.Get("X-Cache") != ""):
		return m, errors.New("it answers from a cache when asked for a consistent reading")
	case !streamed && leader != "true":
		return m, errors.New("its servers have no leader")
	case q.certain && index == 0:
		return m, errors.New("it answers with X-Consul-Index 0")
	}
	if text := h.Get("X-Consul-LastContact"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return m, fmt.Errorf("X-Consul-LastContact is %q", text)
		}
		if contact := time.Duration(ms) * time.Millisecond; contact > maxLastContact {
			return m, fmt.Errorf("its server has not heard of a leader for %s", contact)
		}
	}
	return m, nil
}

// refused returns the refusal of an answer that is not 200.
func refused(resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	return &refusal{resp.StatusCode, string(bytes.TrimSpace(text))}
}

// Paths of the API.
const (
	namesPath     = "/v1/catalog/services"
	servicePath   = "/v1/health/service/"
	authorizePath = "/v1/internal/acl/authorize"
)

// names reads the names of all services.
func (c *client) names(ctx context.Context, q query) (names []string, m meta, err error) {
	m, err = c.read(ctx, namesPath, q, func(r *bounded) (err error) {
		names, err = decodeNames(r)
		return err
	})
	return names, m, err
}

// instances reads the instances of a service.
func (c *client) instances(ctx context.Context, service string, q query) (instances []Instance, m meta, err error) {
	m, err = c.read(ctx, servicePath+service, q, func(r *bounded) (err error) {
		instances, err = decodeInstances(r, service)
		return err
	})
	return instances, m, err
}

// right is one that Consul is asked about. The names of its fields are those of the API.
type right struct {
	Resource, Access, Segment string
}

// maxRights is how many rights Consul decides at once.
const maxRights = 64

// mayRead asks whether the token may read services and nodes: of each, a sample of as many as fit into a request. It
// returns "" if the token may, and else which right it lacks. A token that Consul cannot resolve now, because the
// primary datacenter is away for example, has no rights by this answer, while readings just lack what it may not read.
func (c *client) mayRead(ctx context.Context, services, nodes []string) (lacks string, err error) {
	rights := make([]right, 0, maxRights)
	for _, of := range []struct {
		resource string
		names    []string
	}{{"service", services}, {"node", nodes}} {
		for _, name := range sample(of.names, maxRights/2) {
			rights = append(rights, right{of.resource, "read", name})
		}
	}
	content, err := json.Marshal(rights)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	values := url.Values{}
	if c.cfg.Datacenter != "" {
		values.Set("dc", c.cfg.Datacenter)
	}
	resp, err := c.do(ctx, http.MethodPost, authorizePath, values, content)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var no *refusal
	if err := refused(resp); errors.As(err, &no) && no.status == http.StatusUnauthorized && no.text == "ACL support disabled" {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("POST %s, which says what a token may read: %w", authorizePath, err)
	}
	if c.token() == "" {
		return "any token: ACLs are on, and whoever has no token is not told what is hidden", nil
	}
	var verdicts []struct {
		right
		Allow bool
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxEntry)).Decode(&verdicts); err != nil {
		return "", fmt.Errorf("its answer to %s cannot be read: %w", authorizePath, err)
	}
	if len(verdicts) != len(rights) {
		return "", fmt.Errorf("it answers %s with %d verdicts about %d rights", authorizePath, len(verdicts), len(rights))
	}
	for i, v := range verdicts {
		if v.right != rights[i] {
			return "", fmt.Errorf("it answers %s about another right", authorizePath)
		}
		if !v.Allow {
			return fmt.Sprintf("%s:read on %q", v.Resource, v.Segment), nil
		}
	}
	return "", nil
}

// sample returns at most n of a list, evenly.
func sample(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	out := make([]string, n)
	for i := range out {
		out[i] = list[i*len(list)/n]
	}
	return out
}
