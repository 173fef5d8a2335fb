package authzview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/describe"
)

// Request is what a person says about a request. Zero values are not said.
type Request struct {
	Method, Path, Host, SNI string
	// TCP is true for a connection whose requests the proxy does not see.
	TCP bool
	// Port is that of the Service, or of the workload if one is named.
	Port               uint32
	Headers            map[string][]string
	Claims             map[string]any
	SourceIP, RemoteIP netip.Addr
	// Answers are those of providers of CUSTOM policies, by name.
	Answers map[string]authz.Answer
}

// Answer says what happens to a request, at each class of workloads to which the same policies apply.
type Answer struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Results []Result `json:"results"`
	Notes   []string `json:"notes,omitempty"`
}

// Result says what happens to a request at some workloads.
type Result struct {
	// Workloads are "NAME.NAMESPACE".
	Workloads []string `json:"workloads"`
	// Outcome is "allowed", "denied" or "asks".
	Outcome string `json:"outcome"`
	// Reason says why, in a sentence.
	Reason string `json:"reason"`
	// Action is that of Policy ("NAMESPACE/NAME") and its rule, which decided; empty if none did. Rule is nil where no
	// rule matched. RuleName is how proxies name it in their logs.
	Action   string `json:"action,omitempty"`
	Policy   string `json:"policy,omitempty"`
	Rule     *int   `json:"rule,omitempty"`
	RuleName string `json:"ruleName,omitempty"`
	// Provider refused the request; Providers are asked.
	Provider  string   `json:"provider,omitempty"`
	Providers []string `json:"providers,omitempty"`
	// Seen is the request as the policies see it.
	Seen Seen `json:"seen"`
	// Findings say of every rule whether it matches, in the order of evaluation.
	Findings []Finding `json:"rules"`
	Notes    []string  `json:"notes,omitempty"`
}

// Seen is a request as policies see it.
type Seen struct {
	TCP       bool   `json:"tcp,omitempty"`
	Principal string `json:"principal,omitempty"`
	Method    string `json:"method,omitempty"`
	Host      string `json:"host,omitempty"`
	Path      string `json:"path,omitempty"`
	Port      uint32 `json:"port,omitempty"`
	SNI       string `json:"sni,omitempty"`
	SourceIP  string `json:"sourceIP,omitempty"`
	RemoteIP  string `json:"remoteIP,omitempty"`
	// DestinationIP is the address that is called.
	DestinationIP string                    `json:"destinationIP,omitempty"`
	Headers       map[string][]string       `json:"headers,omitempty"`
	Claims        map[string]any            `json:"claims,omitempty"`
	Metadata      map[string]map[string]any `json:"metadata,omitempty"`
}

// Finding is what one rule has to do with the request.
type Finding struct {
	Action string `json:"action"`
	// Policy is "NAMESPACE/NAME"; Rule is nil for a policy without rules.
	Policy   string `json:"policy"`
	Rule     *int   `json:"rule,omitempty"`
	Provider string `json:"provider,omitempty"`
	DryRun   bool   `json:"dryRun,omitempty"`
	Matches  bool   `json:"matches"`
	// Why says why the rule does not match.
	Why string `json:"why,omitempty"`
}

// Kinds of objects that refuse a request before policies are asked.
const (
	peerAuthentication    = "PeerAuthentication"
	requestAuthentication = "RequestAuthentication"
)

// Check says what happens to a request.
func (m *Mesh) Check(from *Caller, to *Target, r Request) (*Answer, error) {
	if err := m.checkAnswers(r.Answers); err != nil {
		return nil, err
	}
	a := &Answer{From: from.Name, To: to.Name, Notes: slices.Concat(m.Notes, from.Notes)}
	if !m.SettingsKnown {
		a.Notes = append(a.Notes, fmt.Sprintf("no MeshConfig is known: Istio's defaults count, such as trust domain %s and root namespace %s",
			m.Settings.GetTrustDomain(), m.Settings.GetRootNamespace()))
	}
	for _, class := range m.classes(to.Workloads) {
		result, err := m.result(from, to, class, r)
		if err != nil {
			return nil, err
		}
		if err := m.noteOtherPorts(result, from, to, class, r); err != nil {
			return nil, err
		}
		a.Results = append(a.Results, *result)
	}
	return a, nil
}

// Class are workloads to which the same policies apply.
type Class struct {
	Workloads []*Workload
	Policies  []Policy
	tokens    []Tokens
}

// classes divides workloads.
func (m *Mesh) classes(workloads []*Workload) []*Class {
	var out []*Class
	byKey := map[string]*Class{}
	for _, w := range workloads {
		policies, tokens := m.PoliciesOf(w), m.tokensOf(w)
		modes, _, err := m.describe.Modes(describe.Workload{Namespace: w.Namespace, Name: w.Name, Labels: w.Labels})
		key := fmt.Sprint(lists.Map(policies, policyName), lists.Map(tokens, tokensName),
			modes, err, w.Proxy, w.Ports)
		if byKey[key] == nil {
			byKey[key] = &Class{Policies: policies, tokens: tokens}
			out = append(out, byKey[key])
		}
		byKey[key].Workloads = append(byKey[key].Workloads, w)
	}
	return out
}

func policyName(p Policy) string { return p.Namespace + "/" + p.Name }

func tokensName(t Tokens) string { return t.Namespace + "/" + t.Name }

func (m *Mesh) result(from *Caller, to *Target, class *Class, said Request) (*Result, error) {
	w := class.Workloads[0]
	out := &Result{Workloads: lists.Map(class.Workloads, (*Workload).ID)}
	req, err := m.request(out, from, to, w, said)
	if err != nil {
		return nil, err
	}
	refusal := m.handshake(out, w, &req)
	if refusal == nil {
		refusal = m.token(out, w, class.tokens, &req)
	}
	set := m.Compile(class.Policies)
	m.providers(out, set, &req, said)
	out.findings(set.Explain(req))
	out.Seen = seen(req)
	switch {
	case w.Proxy == NoProxy:
		out.Outcome, out.Reason = authz.Allowed.String(), w.unproxied()+", so nothing enforces policies there"
	case refusal != nil:
		out.Outcome, out.Action, out.Policy, out.Reason = authz.Denied.String(), refusal.action, refusal.policy, refusal.reason
	default:
		out.decide(set, set.Decide(req))
	}
	for _, p := range class.Policies {
		if p.Problem != "" {
			if out.Policy == policyName(p) && refusal == nil {
				out.Reason = fmt.Sprintf("AuthorizationPolicy %s is broken and held closed: what it selects is denied", out.Policy)
			}
			out.note("AuthorizationPolicy %s is refused, and so what it selects is closed until a version is accepted: %s", policyName(p), p.Problem)
		}
	}
	out.unsaid(set, from, said, req)
	return out, nil
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// refusal is why a request does not reach the policies.
type refusal struct{ action, policy, reason string }

// handshake says how the caller's certificate is taken by the workload's port.
func (m *Mesh) handshake(out *Result, w *Workload, req *authz.Request) *refusal {
	if w.Proxy == Gateway || w.Proxy == NoProxy {
		if req.Principal != "" && w.Proxy == Gateway {
			out.note("a gateway knows the caller's identity only where its server's TLS mode asks for certificates")
		}
		return nil
	}
	modes, _, err := m.describe.Modes(describe.Workload{Namespace: w.Namespace, Name: w.Name, Labels: w.Labels})
	if err != nil {
		out.note("the mode of mutual TLS is not known: %v", err)
		return nil
	}
	mode := describe.ModeOf(modes, req.Port)
	from := cmp.Or(mode.From, "the mesh's default")
	switch {
	case mode.Mode == "STRICT" && req.Principal == "":
		return &refusal{peerAuthentication, mode.From, fmt.Sprintf("the port takes mutual TLS alone (%s), and the caller shows no "+
			"certificate: the connection fails before any policy", from)}
	case mode.Mode == "DISABLE" && req.Principal != "":
		out.note("the port takes plain text alone (%s): no rule sees the caller's identity", from)
		req.Principal = ""
	}
	return nil
}

// decide fills in a decision.
func (r *Result) decide(set *authz.Set, d authz.Decision) {
	r.Outcome, r.Action, r.Provider, r.Providers = d.Outcome.String(), d.Action, d.Provider, d.Providers
	if d.Rule != nil {
		r.Policy, r.Rule, r.RuleName = d.Rule.Namespace+"/"+d.Rule.Policy, &d.Rule.Index, d.Rule.Name
	}
	rule := ""
	if d.Rule != nil {
		rule = fmt.Sprintf("rule %d of AuthorizationPolicy %s (%s)", d.Rule.Index, r.Policy, d.Action)
	}
	switch {
	case d.Outcome == authz.Asks:
		r.Reason = fmt.Sprintf("%s asks provider %s: it is allowed if that allows it", rule, strings.Join(d.Providers, " and "))
	case d.Provider != "":
		r.Reason = fmt.Sprintf("provider %s refuses it, whom %s asks", d.Provider, rule)
	case d.Outcome == authz.Denied && d.Rule != nil:
		r.Reason = rule + " matches"
	case d.Outcome == authz.Denied:
		r.Reason = fmt.Sprintf("no rule of the ALLOW policies matches: %s", strings.Join(set.Allow.Enforced.Policies, ", "))
	case d.Rule != nil:
		r.Reason = rule + " matches"
	case len(set.Deny.Enforced.Policies) > 0:
		r.Reason = "no DENY rule matches, and there is no ALLOW policy"
	default:
		r.Reason = "no policy applies that could deny it"
	}
	for rule, would := range map[*authz.Rule]string{d.DryRunDeny: "would deny", d.Audit: "marks for the audit"} {
		if rule != nil {
			r.note("rule %d of AuthorizationPolicy %s/%s %s it", rule.Index, rule.Namespace, rule.Policy, would)
		}
	}
	if tried := set.Allow.DryRun.Policies; len(tried) > 0 && d.DryRunAllow == nil {
		r.note("in dry run, no rule of %s matches: enforced alone, they would deny it", strings.Join(tried, ", "))
	}
	slices.Sort(r.Notes)
}

func (r *Result) findings(list []authz.Finding) {
	r.Findings = []Finding{}
	for _, f := range list {
		found := Finding{Action: f.Action, Policy: f.Policy, Provider: f.Provider, DryRun: f.DryRun, Matches: f.Matches, Why: f.Why}
		if f.Rule != nil {
			found.Rule = &f.Rule.Index
		}
		r.Findings = append(r.Findings, found)
		for _, ignored := range ignoredOf(f.Rule) {
			r.note("rule %d of AuthorizationPolicy %s is not valid: %s", f.Rule.Index, f.Policy, ignored)
		}
	}
}

func ignoredOf(r *authz.Rule) []string {
	if r == nil {
		return nil
	}
	return r.Ignored
}

func seen(r authz.Request) Seen {
	return Seen{
		TCP: r.TCP, Principal: r.Principal, Method: r.Method, Host: r.Host, Path: r.Path, Port: r.Port, SNI: r.SNI,
		SourceIP: addressText(r.SourceIP), RemoteIP: addressText(r.RemoteIP), DestinationIP: addressText(r.DestinationIP),
		Headers: r.Headers, Claims: r.Claims, Metadata: r.Metadata,
	}
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// unsaid notes what rules compare and nobody has said.
func (r *Result) unsaid(set *authz.Set, from *Caller, said Request, req authz.Request) {
	missing := map[string]string{}
	identity := false
	for _, m := range matches(set, req.TCP) {
		switch m.Field {
		case authz.Principal:
			identity = true
		case authz.Host:
			if req.Host == "" {
				missing["the host (--host)"] = ""
			}
		case authz.Method:
			if said.Method == "" {
				missing["the method, taken as GET"] = ""
			}
		case authz.Path:
			if said.Path == "" {
				missing["the path, taken as /"] = ""
			}
		case authz.SNI:
			if said.SNI == "" {
				missing["the server name of TLS (--sni)"] = ""
			}
		case authz.SourceIP:
			if !req.SourceIP.IsValid() {
				missing["the address of the caller (--source-ip)"] = ""
			}
		case authz.RemoteIP:
			if !said.RemoteIP.IsValid() {
				missing["the address of the client behind trusted proxies (--remote-ip)"] = ""
			}
		case authz.DestinationIP:
			if !req.DestinationIP.IsValid() {
				missing["the address of the workload"] = ""
			}
		case authz.Port:
			if req.Port == 0 {
				missing["the port (--port)"] = ""
			}
		case authz.Header:
			if _, ok := headerOf(said.Headers, m.Key[0]); !ok && !strings.HasPrefix(m.Key[0], ":") {
				missing[fmt.Sprintf("header %s (--header)", m.Key[0])] = ""
			}
		case authz.Claim, authz.RequestPrincipal:
			if said.Claims == nil {
				missing["a token (--claim)"] = ""
			}
		case authz.Metadata:
			missing["dynamic metadata "+strings.Join(m.Key, " ")] = ""
		}
	}
	if len(missing) > 0 {
		r.note("rules compare what was not said, and is taken as absent: %s", strings.Join(sortedKeys(missing), ", "))
	}
	if identity && req.Principal != "" && from.Principal != "" {
		r.note("the identity counts if the client speaks mutual TLS; in plain text it has none (--plaintext)")
	}
}

func headerOf(headers map[string][]string, name string) ([]string, bool) {
	for k, v := range headers {
		if strings.EqualFold(k, name) {
			return v, true
		}
	}
	return nil, false
}
