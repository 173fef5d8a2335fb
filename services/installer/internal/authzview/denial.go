package authzview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
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
)

// noneApplies stands for a list of what refused a request before a change.
const noneApplies = "none any more, so it was refused before a change"

// IsDenial reports whether a text, such as a line of an access log, says that a proxy has refused a request by
// policies, their providers or tokens.
func IsDenial(text string) bool {
	return named.MatchString(text) || matched.MatchString(text) || strings.Contains(text, "ext_authz_denied") ||
		strings.Contains(text, "jwt_authn_access_denied")
}

// Denial says what has refused a request at a target, of whose proxy's log text is.
func (m *Mesh) Denial(to *Target, text string) (*Denial, error) {
	w := to.Workloads[0]
	switch {
	case strings.Contains(text, "jwt_authn_access_denied"):
		names := cmp.Or(strings.Join(lists.Map(m.tokensOf(w), tokensName), ", "), noneApplies)
		return &Denial{Refused: "token", Reason: "the request's token is not valid for the RequestAuthentications that apply: " + names}, nil
	case strings.Contains(text, "ext_authz_denied"):
		var names []string
		for _, p := range m.Compile(m.PoliciesOf(w)).Custom {
			names = append(names, p.Name)
		}
		return &Denial{Refused: "provider", Reason: "a provider refused the request, whom CUSTOM policies ask: " +
			cmp.Or(strings.Join(names, ", "), noneApplies)}, nil
	}
	id := named.FindStringSubmatch(text)
	if id == nil {
		names := m.Compile(m.PoliciesOf(w)).Allow.Enforced.Policies
		if len(names) == 0 {
			return &Denial{Refused: "policy", Reason: "no ALLOW policy applies any more: the request was refused before a change"}, nil
		}
		return &Denial{Refused: "policy", Action: authz.Allow, Reason: fmt.Sprintf("no rule of the ALLOW policies matched: %s; "+
			"`fairlead authz check CALLER %s METHOD PATH` says why each does not", strings.Join(names, ", "), w.ID())}, nil
	}
	index, err := strconv.Atoi(id[3])
	if err != nil {
		return nil, fmt.Errorf("rule %q: %w", id[3], err)
	}
	d := &Denial{Refused: "policy", Policy: id[1] + "/" + id[2], Rule: &index}
	for _, p := range m.Policies {
		if policyName(p) != d.Policy {
			continue
		}
		d.Action, d.Location = p.Spec.GetAction().String(), p.Location
		d.Reason = fmt.Sprintf("rule %d of AuthorizationPolicy %s (%s) matched", index, d.Policy, d.Action)
		if p.Problem != "" {
			d.Reason = fmt.Sprintf("AuthorizationPolicy %s is refused, and so what it selects is closed: %s", d.Policy, p.Problem)
			return d, nil
		}
		if index >= len(p.Spec.GetRules()) {
			d.Reason += ", which the policy no longer has"
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
	d.Reason = fmt.Sprintf("rule %d of AuthorizationPolicy %s matched, which the mesh no longer has", index, d.Policy)
	return d, nil
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
