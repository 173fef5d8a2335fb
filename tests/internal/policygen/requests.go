package policygen

import (
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// Header is one line of a request's headers.
type Header struct{ Name, Value string }

// Connection is what a caller's connection is like.
type Connection struct {
	// Caller is the SPIFFE id of the caller's certificate without its scheme; empty: the connection is plaintext.
	Caller string
	// Source is the address that the connection comes from, of 127.0.0.0/8; Remote is what a load balancer in front
	// says that it is.
	Source, Remote string
	// SNI is the name that the caller asks for; none on a plaintext connection.
	SNI string
	// Port is the one that the caller connects to.
	Port int
	// TCP tells that no HTTP is spoken on it; a Request on it has nothing else then.
	TCP bool
}

// Request is a request, or a TCP connection.
type Request struct {
	Connection
	Method, Host string
	// Path has the query with it.
	Path    string
	Headers []Header
	// Tokens are placed by Lines.
	Tokens []Token
}

// Lines are the path and the headers of the request with its tokens in them.
func (r Request) Lines(keys *Keys) (path string, headers []Header, err error) {
	path, headers = r.Path, append(headers, r.Headers...)
	for _, t := range r.Tokens {
		text, err := keys.Sign(t)
		if err != nil {
			return "", nil, err
		}
		switch {
		case t.Parameter != "":
			separator := "?"
			if strings.Contains(path, "?") {
				separator = "&"
			}
			path += separator + t.Parameter + "=" + text
		case t.Cookie != "":
			headers = append(headers, Header{"cookie", t.Cookie + "=" + text})
		default:
			headers = append(headers, Header{t.Header, t.Prefix + text})
		}
	}
	return path, headers, nil
}

// connections is how many a set's requests are divided over, for each protocol.
const connections = 4

// Requests draws n requests to the workload of a set. Most are made to match a rule of it, and half of these are then
// changed in one place. One in eight is a TCP connection.
func (s Set) Requests(seed uint64, n int) []Request {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.Name))
	r := requests{newDrawer(seed, hash.Sum64()), s}
	var open []Connection
	for range connections {
		open = append(open, r.connection(false))
	}
	out := make([]Request, 0, n)
	for range n {
		if r.one(8) {
			request := Request{Connection: r.connection(true)}
			if !r.one(3) {
				r.meet(&request)
			}
			out = append(out, request)
			continue
		}
		request := r.any(open[r.IntN(len(open))])
		if !r.one(4) {
			before := request.Connection
			r.meet(&request)
			if request.Connection != before {
				open[r.IntN(len(open))] = request.Connection
			}
			if r.one(2) {
				r.change(&request)
			}
		}
		out = append(out, request)
	}
	return out
}

type requests struct {
	drawer
	set Set
}

func (r requests) connection(tcp bool) Connection {
	c := Connection{Source: r.word(sources), Remote: r.word(remotes), TCP: tcp, Port: httpPorts[r.IntN(len(httpPorts))]}
	if tcp {
		c.Port = tcpPorts[r.IntN(len(tcpPorts))]
	}
	if !r.one(6) {
		c.Caller, c.SNI = own(r.set, r.word(callers)), r.word(names)
	}
	return c
}

func (r requests) any(on Connection) Request {
	request := Request{Connection: on, Method: r.word(methods), Path: r.word(paths), Host: r.word(hosts)}
	for range r.IntN(3) {
		name := r.word(headerNames)
		request.Headers = append(request.Headers, Header{name, r.word(headerValues[name])})
	}
	if r.one(3) {
		request.Headers = append(request.Headers, Header{"x-ext-authz", r.word([]string{"allow", "deny"})})
	}
	if r.one(5) {
		request.Headers = append(request.Headers, Header{"x-forwarded-for", r.word(remotes)})
	}
	if r.one(3) {
		request.Tokens = append(request.Tokens, r.token())
	}
	if len(request.Tokens) > 0 && r.one(8) {
		request.Tokens = append(request.Tokens, r.token())
	}
	return request
}

// change changes one thing of a request.
func (r requests) change(q *Request) {
	other := r.any(q.Connection)
	switch r.IntN(8) {
	case 0:
		q.Method = other.Method
	case 1:
		q.Path = other.Path
	case 2:
		q.Host = other.Host
	case 3:
		q.Headers = other.Headers
	case 4:
		q.Tokens = other.Tokens
	case 5: // the same name again
		if len(q.Headers) > 0 {
			name := q.Headers[r.IntN(len(q.Headers))].Name
			value := "other"
			if words := headerValues[name]; words != nil {
				value = r.word(words)
			}
			q.Headers = append(q.Headers, Header{name, value})
		}
	case 6: // near the path
		q.Path = r.word([]string{"/.", "/", ""}) + q.Path + r.word([]string{"/", "x", "?q=1", "%20", ";a"})
	default: // near the host
		q.Host = r.word([]string{strings.ToUpper(q.Host), q.Host + ":8080", "x" + q.Host, q.Host + "."})
	}
}

// meet makes the request match a rule of the set, as far as that is easy.
func (r requests) meet(q *Request) {
	var rules []*security.Rule
	for _, o := range r.set.Objects {
		rules = append(rules, o.Policy().GetRules()...)
	}
	if len(rules) == 0 {
		return
	}
	rule := rules[r.IntN(len(rules))]
	if from := rule.GetFrom(); len(from) > 0 {
		r.meetSource(q, from[r.IntN(len(from))].GetSource())
	}
	if to := rule.GetTo(); len(to) > 0 {
		r.meetOperation(q, to[r.IntN(len(to))].GetOperation())
	}
	for _, c := range rule.GetWhen() {
		r.meetCondition(q, c)
	}
}

// value draws one of the values, without its wildcard.
func (r requests) value(values []string, set func(string)) {
	if len(values) > 0 {
		set(r.word(values))
	}
}

// fill writes something for the wildcard of a pattern.
func fill(pattern, with string) string { return strings.ReplaceAll(pattern, "*", with) }

func (r requests) meetSource(q *Request, s *security.Source) {
	r.value(s.GetPrincipals(), func(v string) { r.caller(q, v) })
	r.value(s.GetNamespaces(), func(v string) { r.caller(q, TrustDomain+"/ns/"+fill(v, "x")+"/sa/web") })
	r.value(s.GetServiceAccounts(), func(v string) { r.account(q, v) })
	r.value(s.GetTrustDomains(), func(v string) { r.caller(q, fill(v, "x")+"/ns/shop/sa/web") })
	r.value(s.GetRequestPrincipals(), func(v string) { r.principal(q, v) })
	r.value(s.GetIpBlocks(), func(v string) { r.source(q, v) })
	r.value(s.GetRemoteIpBlocks(), func(v string) { r.remote(q, v) })
}

func (r requests) caller(q *Request, pattern string) {
	if pattern == "*" {
		pattern = own(r.set, r.word(callers))
	}
	if after, ok := strings.CutPrefix(pattern, "*/"); ok {
		pattern = TrustDomain + "/" + after
	}
	q.Caller = strings.TrimPrefix(fill(pattern, "x"), "spiffe://")
}

func (r requests) account(q *Request, account string) {
	namespace, name, ok := strings.Cut(account, "/")
	if !ok {
		namespace, name = r.set.Namespace, account
	}
	r.caller(q, TrustDomain+"/ns/"+namespace+"/sa/"+name)
}

// source takes an address of 127.0.0.0/8 alone: others cannot be had.
func (r requests) source(q *Request, block string) {
	if a, ok := addressIn(block); ok && a.IsLoopback() && a.Is4() {
		q.Source = a.String()
	}
}

func (r requests) remote(q *Request, block string) {
	if a, ok := addressIn(block); ok && a.Is4() {
		q.Remote = a.String()
		if r.one(2) {
			q.Headers = append(q.Headers, Header{"x-forwarded-for", a.String()})
		}
	}
}

// addressIn is an address of a block, or the address itself.
func addressIn(block string) (netip.Addr, bool) {
	if p, err := netip.ParsePrefix(block); err == nil {
		a := p.Masked().Addr()
		if p.Bits() < a.BitLen()-1 {
			a = a.Next().Next()
		}
		return a, true
	}
	a, err := netip.ParseAddr(block)
	return a, err == nil
}

func (r requests) good(q *Request) *Token {
	t := r.token()
	t.Fault = ""
	q.Tokens = []Token{t}
	return &q.Tokens[0]
}

// principal makes a token whose issuer and subject are a pattern's, as far as an issuer of Keys allows it.
func (r requests) principal(q *Request, pattern string) {
	t := r.good(q)
	for _, issuer := range issuers {
		if subject, ok := strings.CutPrefix(pattern, issuer+"/"); ok {
			t.Claims["iss"], t.Claims["sub"] = issuer, fill(subject, "x")
			return
		}
	}
	if slash := strings.LastIndex(pattern, "/"); pattern != "*" && pattern != "*/*" {
		t.Claims["sub"] = fill(pattern[slash+1:], "x")
	}
}

func (r requests) meetOperation(q *Request, o *security.Operation) {
	r.value(o.GetPaths(), func(v string) {
		v = strings.NewReplacer("{**}", "a/b.txt", "{*}", "v1").Replace(v)
		if q.Path = fill(v, "x"); !strings.HasPrefix(q.Path, "/") {
			q.Path = "/" + q.Path
		}
		q.Path = strings.ReplaceAll(q.Path, " ", "%20")
	})
	r.value(o.GetMethods(), func(v string) { q.Method = strings.NewReplacer("[", "", "]", "").Replace(fill(v, "OS")) })
	r.value(o.GetHosts(), func(v string) { q.Host = fill(v, "x") })
	r.value(o.GetPorts(), func(v string) { r.port(q, v) })
}

// port takes ports of the right protocol alone.
func (r requests) port(q *Request, text string) {
	port, err := strconv.Atoi(text)
	if err == nil && (port >= tcpPorts[0]) == q.TCP {
		q.Port = port
	}
}

func (r requests) meetCondition(q *Request, c *security.Condition) {
	key := c.GetKey()
	inner := ""
	if i := strings.IndexByte(key, '['); i >= 0 {
		inner = strings.TrimSuffix(key[i+1:], "]")
	}
	r.value(c.GetValues(), func(v string) {
		switch {
		case strings.HasPrefix(key, "request.headers["):
			if !strings.HasPrefix(inner, ":") {
				q.Headers = append(q.Headers, Header{inner, fill(v, "x")})
			}
		case strings.HasPrefix(key, "request.auth.claims["):
			text := any(fill(v, "x"))
			if r.one(2) {
				text = []any{text, "other"}
			}
			if t := r.good(q); inner != "iss" && inner != "sub" {
				t.claim(inner, text)
			}
		case key == "request.auth.principal":
			r.principal(q, v)
		case key == "request.auth.audiences":
			r.good(q).Claims["aud"] = []any{fill(v, "x")}
		case key == "request.auth.presenter":
			r.good(q).Claims["azp"] = fill(v, "x")
		case key == "source.ip":
			r.source(q, v)
		case key == "remote.ip":
			r.remote(q, v)
		case key == "source.principal":
			r.caller(q, v)
		case key == "source.namespace":
			r.caller(q, TrustDomain+"/ns/"+fill(v, "x")+"/sa/web")
		case key == "source.trustDomain":
			r.caller(q, fill(v, "x")+"/ns/shop/sa/web")
		case key == "source.serviceAccount":
			r.account(q, v)
		case key == "connection.sni":
			if q.SNI = fill(v, "x"); q.Caller == "" {
				q.Caller = own(r.set, r.word(callers))
			}
		case key == "destination.port":
			r.port(q, v)
		}
	})
}
