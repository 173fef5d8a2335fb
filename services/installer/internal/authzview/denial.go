package authzview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
)

// Denial is what a proxy's log says of a request that it has refused.
type Denial struct {
	// Refused is what refused the request: "policy", "provider" or "token".
	Refused string `json:"refused"`
	// Policy is "NAMESPACE/NAME", and Rule the place of the rule that matched; nil if no ALLOW rule did.
	Policy   string `json:"policy,omitempty"`
	Rule     *int   `json:"rule,omitempty"`
	Action   string `json:"action,omitempty"`
	Location string `json:"location,omitempty"`
	// Text is the rule as YAML.
	Text string `json:"text,omitempty"`
	// Reason says it in a sentence.
	Reason string `json:"reason"`
}

var (
	// matched is in Envoy's RESPONSE_CODE_DETAILS and CONNECTION_TERMINATION_DETAILS.
	matched = regexp.MustCompile(`rbac_access_denied_matched_policy\[(.*)\]`)
	// named has the name that xds-server gives a rule.
	named = regexp.MustCompile(`ns\[([^\]]*)\]-policy\[([^\]]*)\]-rule\[(\d+)\]`)
	// unanswered is Envoy's response flag for requests that a provider refuses, or does not answer.
	unanswered = regexp.MustCompile(`\bUAEX\b`)
)

// Parts of what Envoy's logs say.
const (
	nothingMatched = "rbac_access_denied_matched_policy[none]"
	tokenRefused   = "jwt_authn_access_denied"
	providerSaysNo = "ext_authz_denied"
	providerFails  = "ext_authz_error"
	// brokenProvider ends the names of rules whose provider cannot be asked.
	brokenProvider = "-deny-due-to-bad-CUSTOM-action"
)

// noneApplies stands for a list of what refused a request before a change.
const noneApplies = "none any more, so it was refused before a change"

// IsDenial reports whether a text, such as a line of an access log, says that a proxy has refused a request by
// policies, their providers or tokens.
func IsDenial(text string) bool {
	return named.MatchString(text) || matched.MatchString(text) || unanswered.MatchString(text) ||
		slices.ContainsFunc([]string{tokenRefused, providerSaysNo, providerFails}, func(part string) bool { return strings.Contains(text, part) })
}

// Denial says what has refused a request at a target, of whose proxy's log text is.
func (m *Mesh) Denial(to *Target, text string) (*Denial, error) {
	w := to.Workloads[0]
	id := named.FindStringSubmatch(text)
	switch {
	case strings.Contains(text, tokenRefused):
		names := cmp.Or(strings.Join(lists.Map(m.tokensOf(w), tokensName), ", "), noneApplies)
		return &Denial{Refused: "token", Reason: "the request's token is not valid for the RequestAuthentications that apply: " + names}, nil
	case strings.Contains(text, providerFails):
		return &Denial{Refused: "provider", Reason: "a provider that CUSTOM policies ask did not answer, or failed, and so the request was " +
			"refused: " + m.providersOf(w) + "; look at its Pods, and at failOpen and timeout of the provider in MeshConfig"}, nil
	case strings.Contains(text, providerSaysNo):
		return &Denial{Refused: "provider", Reason: "a provider refused the request, whom CUSTOM policies ask: " + m.providersOf(w)}, nil
	case id == nil && unanswered.MatchString(text):
		return &Denial{Refused: "provider", Reason: "a provider that CUSTOM policies ask refused the request or did not answer: " +
			m.providersOf(w) + "; RESPONSE_CODE_DETAILS in the format of the log tell these apart"}, nil
	case strings.Contains(text, nothingMatched):
		names := m.Compile(m.PoliciesOf(w)).Allow.Enforced.Policies
		if len(names) == 0 {
			return &Denial{Refused: "policy", Reason: "no ALLOW policy applies any more: the request was refused before a change"}, nil
		}
		return &Denial{Refused: "policy", Action: authz.Allow, Reason: fmt.Sprintf("no rule of the ALLOW policies matched: %s; "+
			"`fairlead authz check CALLER %s METHOD PATH` says why each does not", strings.Join(names, ", "), w.ID())}, nil
	}
	if id != nil {
		if index, err := strconv.Atoi(id[3]); err == nil {
			return m.denialByRule(to, id[1]+"/"+id[2], index, strings.Contains(text, brokenProvider))
		}
	}
	return &Denial{Refused: "policy", Reason: "the text names no rule of an AuthorizationPolicy, ns[NAMESPACE]-policy[NAME]-rule[NUMBER]: " +
		"copy the line of the log as it is, or look for an EnvoyFilter with rules of its own"}, nil
}

// providersOf names the providers that are asked about requests to a workload, with their services.
func (m *Mesh) providersOf(w *Workload) string {
	var out []string
	for _, p := range m.Compile(m.PoliciesOf(w)).Custom {
		name := p.Name
		if service, port := asked(m.provider(name)); service != "" {
			name += fmt.Sprintf(" (%s:%d)", service, port)
		}
		out = append(out, name)
	}
	return cmp.Or(strings.Join(out, ", "), noneApplies)
}

// denialByRule says of the rule of a policy that it matched. broken is true if its provider cannot be asked.
func (m *Mesh) denialByRule(to *Target, policy string, index int, broken bool) (*Denial, error) {
	d := &Denial{Refused: "policy", Policy: policy, Rule: &index}
	i := slices.IndexFunc(m.Policies, func(p Policy) bool { return policyName(p) == policy })
	if i < 0 {
		d.Reason = fmt.Sprintf("rule %d of AuthorizationPolicy %s matched, which the mesh no longer has", index, policy)
		return d, nil
	}
	p := m.Policies[i]
	d.Action, d.Location = p.Spec.GetAction().String(), p.Location
	d.Reason = fmt.Sprintf("rule %d of AuthorizationPolicy %s (%s) matched", index, policy, d.Action)
	gone := index >= len(p.Spec.GetRules())
	switch {
	case p.Problem != "":
		d.Reason = closedText(p)
	case gone:
		d.Reason += ", which the policy no longer has"
	case broken:
		d.Refused, d.Reason = "provider", d.Reason+", and what it matches is denied, since "+m.brokenText(p.Spec.GetProvider().GetName())
	}
	if !slices.ContainsFunc(to.Workloads, func(w *Workload) bool { return m.selection(w).Applies(p.Namespace, p.Spec) }) {
		d.Reason += fmt.Sprintf("; it does not apply to %s, so the line is of another proxy's log, or of before a change", to.Workloads[0].ID())
	}
	if gone || p.Problem != "" {
		return d, nil
	}
	js, err := protojson.Marshal(p.Spec.GetRules()[index])
	if err != nil {
		return nil, err
	}
	y, err := yaml.JSONToYAML(json.RawMessage(js))
	d.Text = strings.TrimSpace(string(y))
	return d, err
}

// brokenText says why a provider cannot be asked, and where that is mended.
func (m *Mesh) brokenText(name string) string {
	if err := m.unasked(m.provider(name)); err != nil && m.SettingsKnown {
		return fmt.Sprintf("provider %q of the policy cannot be asked: %v; correct extensionProviders of MeshConfig, or spec.provider.name", name,
			err)
	}
	return fmt.Sprintf("provider %q of the policy could not be asked: look whether the mesh has the service that extensionProviders of "+
		"MeshConfig name for it", name)
}

// Print prints the denial for people.
func (d *Denial) Print(out io.Writer) error {
	reason := d.Reason
	if d.Location != "" {
		reason += ", in " + d.Location
	}
	_, err := fmt.Fprintf(out, "denied: %s\n", reason)
	if d.Text != "" {
		_, err = fmt.Fprintf(out, "\nrule:\n  %s\n", strings.ReplaceAll(d.Text, "\n", "\n  "))
	}
	return err
}
