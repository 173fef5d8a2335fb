// Package format is the format of scenario files: what README.md and schema.json beside the suite say, as Go types.
package format

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Kinds of workload.
const (
	Sidecar   = "sidecar"
	Gateway   = "gateway"
	Naked     = "naked"
	Proxyless = "proxyless"
)

// How a workload's connections reach its proxy.
const (
	Redirect = "REDIRECT"
	TProxy   = "TPROXY"
	None     = "NONE"
)

// NoService is the service name of a workload that has none.
const NoService = "none"

// RootNamespace is where mesh-wide objects are.
const RootNamespace = "istio-system"

// Topology is what runs.
type Topology struct {
	// Name is the file's name, or that of the scenario that holds the topology itself.
	Name string `json:"-"`

	Namespaces map[string]map[string]string `json:"namespaces"`
	// Mesh is a MeshConfig, as YAML text.
	Mesh string `json:"mesh"`
	// DNS has, for names that the machine's resolver knows, the workloads whose addresses it answers with.
	DNS map[string][]string `json:"dns"`
	// Services are Kubernetes Services, as YAML text, that replace those made for the workloads.
	Services  string     `json:"services"`
	Workloads []Workload `json:"workloads"`
}

// Workload is a machine of the topology, defaults filled in by Load.
type Workload struct {
	Name           string            `json:"name"`
	Namespace      string            `json:"namespace"`
	Service        string            `json:"service"`
	ServiceAccount string            `json:"serviceAccount"`
	Labels         map[string]string `json:"labels"`
	Annotations    map[string]string `json:"annotations"`
	Kind           string            `json:"kind"`
	Capture        string            `json:"capture"`
	// Locality is region/zone/subzone.
	Locality string `json:"locality"`
	Network  string `json:"network"`
	Headless bool   `json:"headless"`
	// Start is false for a workload that only a step adds.
	Start *bool  `json:"start"`
	Ports []Port `json:"ports"`
}

// Started tells whether the workload runs from the beginning.
func (w *Workload) Started() bool { return w.Start == nil || *w.Start }

// HasProxy tells whether an Envoy stands before the workload, or is it.
func (w *Workload) HasProxy() bool { return w.Kind == Sidecar || w.Kind == Gateway }

// Applications that a port may have.
const (
	AppHTTP        = "HTTP"
	AppHTTP2       = "HTTP2"
	AppGRPC        = "GRPC"
	AppHTTPS       = "HTTPS"
	AppTLS         = "TLS"
	AppTCP         = "TCP"
	AppServerFirst = "TCP_SERVER_FIRST"
	AppUDP         = "UDP"
	AppConnect     = "CONNECT"

	// These are servers beside the echo application: what proxies ask or tell.
	AppExtAuthzHTTP = "EXT_AUTHZ_HTTP"
	AppExtAuthzGRPC = "EXT_AUTHZ_GRPC"
	AppOTLP         = "OTLP"
	AppZipkin       = "ZIPKIN"
	AppALS          = "ALS"
)

// Port is a port of a workload and of its Service.
type Port struct {
	Name        string   `json:"name"`
	Port        int      `json:"port"`
	TargetPort  int      `json:"targetPort"`
	App         string   `json:"app"`
	AppProtocol string   `json:"appProtocol"`
	Bind        string   `json:"bind"`
	TLS         *PortTLS `json:"tls"`
}

// PortTLS names the certificates of a port's application.
type PortTLS struct {
	Cert     string `json:"cert"`
	ClientCA string `json:"clientCA"`
}

// Certificate says what a certificate of the scenario is like.
type Certificate struct {
	Issuer   string   `json:"issuer"`
	DNSNames []string `json:"dnsNames"`
	URIs     []string `json:"uris"`
	CA       bool     `json:"ca"`
	// Revoked has the issuer's ${crl:…} name it.
	Revoked  bool      `json:"revoked"`
	NotAfter *Duration `json:"notAfter"`
	// IPs are for certificates of the runner's own.
	IPs []netip.Addr `json:"-"`
}

// Scenario is a file.
type Scenario struct {
	Name         string                 `json:"name"`
	About        string                 `json:"about"`
	Covers       []string               `json:"covers"`
	Needs        []string               `json:"needs"`
	Topology     *Topology              `json:"-"`
	Certificates map[string]Certificate `json:"certificates"`
	Tokens       map[string]Token       `json:"tokens"`
	Allow        []string               `json:"allow"`
	Steps        []Step                 `json:"steps"`

	// File is where it was read.
	File string `json:"-"`
}

// Allows tells whether an unasked assertion does not hold in the scenario.
func (s *Scenario) Allows(what string) bool { return slices.Contains(s.Allow, what) }

// Step is one of its members.
type Step struct {
	Apply       string      `json:"apply,omitempty"`
	ApplyNoWait string      `json:"applyNoWait,omitempty"`
	Reject      *Reject     `json:"reject,omitempty"`
	Delete      []string    `json:"delete,omitempty"`
	Call        *Call       `json:"call,omitempty"`
	Background  *Background `json:"background,omitempty"`
	End         string      `json:"end,omitempty"`
	Stop        string      `json:"stop,omitempty"`
	StartTarget string      `json:"start,omitempty"`
	Kill        string      `json:"kill,omitempty"`
	Restart     string      `json:"restart,omitempty"`
	Add         string      `json:"add,omitempty"`
	Remove      string      `json:"remove,omitempty"`
	// Files are, of workloads, what their proxies find in files: name to text, nil for one that is taken away.
	Files map[string]map[string]*FileText `json:"files,omitempty"`
	// Keys says what happens to keys of tokens, by name.
	Keys       map[string]string `json:"keys,omitempty"`
	Wait       Duration          `json:"wait,omitempty"`
	Eventually *Eventually       `json:"eventually,omitempty"`
	Config     *Config           `json:"config,omitempty"`
}

// FileText is a file's content; what its variables stand for is put in as it is.
type FileText string

// Reject is a step that must be refused.
type Reject struct {
	YAML string `json:"yaml"`
	// Message is a regular expression.
	Message string `json:"message"`
}

// Background is a call that is made over and over.
type Background struct {
	Name string `json:"name"`
	Call Call   `json:"call"`
}

// Eventually holds steps that must come true within a time.
type Eventually struct {
	Within Duration `json:"within"`
	Steps  []Step   `json:"steps"`
}

// Config is what a proxy must hold.
type Config struct {
	Of           string    `json:"of"`
	Clusters     *Holdings `json:"clusters"`
	Listeners    *Holdings `json:"listeners"`
	Routes       *Holdings `json:"routes"`
	VirtualHosts *Holdings `json:"virtualHosts"`
	Endpoints    *Holdings `json:"endpoints"`
}

// Holdings is what must be said of a list of names.
type Holdings struct {
	Min    *int     `json:"min"`
	Max    *int     `json:"max"`
	Has    []string `json:"has"`
	HasNot []string `json:"hasNot"`
}

// Call is a request, or many of them.
type Call struct {
	From   string `json:"from"`
	URL    string `json:"url"`
	Via    string `json:"via"`
	Method string `json:"method"`
	// Target goes out as the request's target whatever the URL says; empty for the URL's own.
	Target string `json:"target"`
	// Headers without a value are not sent.
	Headers         map[string]Fields `json:"headers"`
	Body            string            `json:"body"`
	Count           int               `json:"count"`
	Parallel        int               `json:"parallel"`
	Rate            float64           `json:"rate"`
	SameConnection  bool              `json:"sameConnection"`
	Timeout         Duration          `json:"timeout"`
	TLS             *CallTLS          `json:"tls"`
	FollowRedirects bool              `json:"followRedirects"`
	SourceIP        string            `json:"sourceIP"`
	Cookies         bool              `json:"cookies"`
	Version         string            `json:"version"`
	ServerFirst     bool              `json:"serverFirst"`
	Expect          Expect            `json:"expect"`
}

// Fields are the values of a header, sent once each; nil keeps the caller from sending the header at all.
type Fields []string

// UnmarshalJSON implements json.Unmarshaler: a text is one value.
func (f *Fields) UnmarshalJSON(raw []byte) error {
	var one *string
	if json.Unmarshal(raw, &one) == nil {
		if *f = nil; one != nil {
			*f = Fields{*one}
		}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(f))
}

// CallTLS is the caller's side of TLS; CA and Cert are names of certificates.
type CallTLS struct {
	CA       string   `json:"ca"`
	Cert     string   `json:"cert"`
	SNI      string   `json:"sni"`
	ALPN     []string `json:"alpn"`
	Min      string   `json:"min"`
	Max      string   `json:"max"`
	Insecure bool     `json:"insecure"`
}

// Expect is what must hold for a call; nil and zero mean that nothing is said.
type Expect struct {
	Status         *Status            `json:"status"`
	GRPCStatus     *GRPCStatus        `json:"grpcStatus"`
	Error          string             `json:"error"`
	From           map[string]float64 `json:"from"`
	Tolerance      *float64           `json:"tolerance"`
	Sticky         *bool              `json:"sticky"`
	Request        *Request           `json:"request"`
	Identity       Identity           `json:"identity"`
	Wire           string             `json:"wire"`
	Response       *Response          `json:"response"`
	Duration       *DurationRange     `json:"duration"`
	Attempts       *Number            `json:"attempts"`
	Mirrored       map[string]float64 `json:"mirrored"`
	Certificate    *ServedCertificate `json:"certificate"`
	NewConnections *Number            `json:"newConnections"`
	// Addresses is nil if nothing is said, empty if none are expected.
	Addresses []string `json:"addresses"`
	// Metrics, AccessLog and Spans are what proxies must have told of the call.
	Metrics   []Metric    `json:"metrics"`
	AccessLog []AccessLog `json:"accessLog"`
	Spans     []Spans     `json:"spans"`
}

// Share is how many points of a hundred a share may differ.
func (e *Expect) Share() float64 {
	if e.Tolerance != nil {
		return *e.Tolerance
	}
	return 10
}

// Identity is the expected SPIFFE URI of the caller; Given with an empty URI means none.
type Identity struct {
	Given bool
	URI   string
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Identity) UnmarshalJSON(raw []byte) error {
	i.Given = true
	var uri *string
	if err := json.Unmarshal(raw, &uri); err != nil {
		return err
	}
	if uri != nil {
		i.URI = *uri
	}
	return nil
}

// Request is what the server must have seen.
type Request struct {
	Path      string             `json:"path"`
	Method    string             `json:"method"`
	Host      string             `json:"host"`
	Version   string             `json:"version"`
	Headers   map[string]*string `json:"headers"`
	Body      string             `json:"body"`
	LocalPort int                `json:"localPort"`
	SourceIP  string             `json:"sourceIP"`
	TLS       *SeenTLS           `json:"tls"`
}

// SeenTLS is what the application must have seen of its own TLS.
type SeenTLS struct {
	SNI     string `json:"sni"`
	ALPN    string `json:"alpn"`
	Version string `json:"version"`
}

// Response is what the caller must have seen.
type Response struct {
	Headers  map[string]*string `json:"headers"`
	Body     string             `json:"body"`
	Version  string             `json:"version"`
	Location string             `json:"location"`
}

// ServedCertificate is what the caller must have been shown.
type ServedCertificate struct {
	DNSNames []string `json:"dnsNames"`
	Issuer   string   `json:"issuer"`
	URI      string   `json:"uri"`
}

// DurationRange bounds how long a call may take; nil is no bound.
type DurationRange struct {
	Min *Duration `json:"min"`
	Max *Duration `json:"max"`
}

// Duration is written as in 1m30s.
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// D is d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Number bounds a count; nil is no bound.
type Number struct {
	Min *int `json:"min"`
	Max *int `json:"max"`
}

// UnmarshalJSON implements json.Unmarshaler: a number alone is both bounds.
func (n *Number) UnmarshalJSON(raw []byte) error {
	var exact int
	if json.Unmarshal(raw, &exact) == nil {
		n.Min, n.Max = &exact, &exact
		return nil
	}
	type plain Number
	return json.Unmarshal(raw, (*plain)(n))
}

// Holds tells whether v is within the bounds.
func (n *Number) Holds(v int) bool {
	return (n.Min == nil || v >= *n.Min) && (n.Max == nil || v <= *n.Max)
}

// String says the bounds.
func (n *Number) String() string {
	switch {
	case n.Min != nil && n.Max != nil && *n.Min == *n.Max:
		return strconv.Itoa(*n.Min)
	case n.Min != nil && n.Max != nil:
		return fmt.Sprintf("%d to %d", *n.Min, *n.Max)
	case n.Min != nil:
		return fmt.Sprintf("at least %d", *n.Min)
	case n.Max != nil:
		return fmt.Sprintf("at most %d", *n.Max)
	}
	return "any number"
}

// Status is either a set of codes, each call's one of which must be, or shares of codes in percent.
type Status struct {
	OneOf  []int
	Shares map[int]float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Status) UnmarshalJSON(raw []byte) error {
	var code int
	if json.Unmarshal(raw, &code) == nil {
		s.OneOf = []int{code}
		return nil
	}
	if json.Unmarshal(raw, &s.OneOf) == nil {
		return nil
	}
	return json.Unmarshal(raw, &s.Shares)
}

// String says which codes.
func (s *Status) String() string {
	if s.Shares == nil {
		if len(s.OneOf) == 1 {
			return strconv.Itoa(s.OneOf[0])
		}
		return fmt.Sprintf("one of %v", s.OneOf)
	}
	text := ""
	for _, code := range slices.Sorted(maps.Keys(s.Shares)) {
		text += fmt.Sprintf(" %d: %g %%", code, s.Shares[code])
	}
	return text[1:]
}

// GRPCStatus is a code, written by name or number.
type GRPCStatus string

// UnmarshalJSON implements json.Unmarshaler.
func (g *GRPCStatus) UnmarshalJSON(raw []byte) error {
	var n int
	if json.Unmarshal(raw, &n) == nil {
		*g = GRPCStatus(strconv.Itoa(n))
		return nil
	}
	var name string
	err := json.Unmarshal(raw, &name)
	*g = GRPCStatus(name)
	return err
}
