// Package clustertrust has the tokens of a remote cluster trusted: Read asks an API server for its issuer and its keys,
// ReadNomad a cluster of Nomad, Prepare compares them with what the mesh has already, and Plan.Write writes the
// ConfigMap by which the ca takes the cluster's tokens. `fairlead remote-clusters trust` calls them.
package clustertrust

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/services/installer/internal/kube"
)

// maxAnswer bounds what an API server says about its tokens.
const maxAnswer = 1 << 20

// AllNamespaces in Wanted.Namespaces stands for all but those of the mesh's own services.
const AllNamespaces = "*"

// Tokens is what an API server says about the tokens of its service accounts, or a cluster of Nomad about its workload
// identities.
type Tokens struct {
	Issuer string
	Keys   []jose.JSONWebKey
	// Nomad is whether they are Nomad's.
	Nomad bool
}

// Read asks an API server, which the error names as what.
func Read(ctx context.Context, what string, api kube.API) (*Tokens, error) {
	get := func(path string) ([]byte, error) {
		raw, err := api.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil && len(raw) > maxAnswer {
			err = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; ClusterRole system:service-account-issuer-discovery has this right", err)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", what, path, kube.Explain(err))
		}
		return raw, nil
	}
	about, err := get("/.well-known/openid-configuration")
	if err != nil {
		return nil, err
	}
	var t struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(about, &t); err != nil || t.Issuer == "" {
		return nil, fmt.Errorf("%s: /.well-known/openid-configuration names no issuer; is --service-account-issuer of its API server a URL?",
			what)
	}
	raw, err := get("/openid/v1/jwks")
	if err != nil {
		return nil, err
	}
	keys, err := clusterkeys.PublicKeys(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: /openid/v1/jwks: %w", what, err)
	}
	return &Tokens{Issuer: t.Issuer, Keys: keys}, nil
}

// Wanted is what is to be trusted.
type Wanted struct {
	// Name is the id of the cluster.
	Name string
	// Namespaces are those of its identities. nil keeps what the ConfigMap has; AllNamespaces removes the rule.
	Namespaces []string
	// Rules of a cluster of Nomad; nil keeps what the ConfigMap has.
	Rules []clusterkeys.NomadRule
	// TrustDomain of its identities; "" keeps what the ConfigMap has.
	TrustDomain string
	// RemoveOldKeys removes keys that the cluster's API server has no more. They are kept else: tokens that they have
	// signed are valid still.
	RemoveOldKeys bool
	// ControlPlane is the namespace of the ca.
	ControlPlane string
}

// Key is one of a plan.
type Key struct {
	ID, Fingerprint string
	// State is new, known, old (kept, though the API server has it no more) or removed.
	State string
}

// Plan is what Write writes.
type Plan struct {
	Cluster clusterkeys.Cluster
	Keys    []Key
	// IssuerBefore is what the ConfigMap has had, "" if it is new.
	IssuerBefore string
	// ConfigMap is the name.
	ConfigMap string

	namespace string
	before    *corev1.ConfigMap
}

// Prepare says what is to be written, or why it must not be: own is what the API server of the mesh's own cluster says,
// remote what that of the cluster says, and existing are the ConfigMaps of the label clusterkeys.Label.
func Prepare(want Wanted, own, remote *Tokens, existing []corev1.ConfigMap) (*Plan, error) {
	if slices.Contains(want.Namespaces, want.ControlPlane) {
		return nil, fmt.Errorf("--namespaces: %s is the control plane's, whose identities no remote cluster has; leave it out",
			want.ControlPlane)
	}
	for _, r := range want.Rules {
		if strings.HasPrefix(r.Account, want.ControlPlane+"/") {
			return nil, fmt.Errorf("--nomad-rules: account %s is in the control plane's namespace, whose identities nobody else has; name another",
				r.Account)
		}
	}
	p := &Plan{namespace: want.ControlPlane}
	p.Cluster = clusterkeys.Cluster{Name: want.Name, Issuer: remote.Issuer, TrustDomain: want.TrustDomain}
	known := map[string]string{} // by fingerprint, of whom it is
	if err := addKeys(known, "the own cluster", own.Keys); err != nil {
		return nil, err
	}
	var older []jose.JSONWebKey
	for i := range existing {
		m := &existing[i]
		if m.Data[clusterkeys.NameKey] == want.Name {
			if p.before != nil {
				return nil, fmt.Errorf("ConfigMaps %s and %s in namespace %s are both of cluster %s; remove one of them", p.before.Name, m.Name,
					want.ControlPlane, want.Name)
			}
			p.before = m
			continue
		}
		keys, err := clusterkeys.PublicKeys([]byte(m.Data[clusterkeys.KeysKey]))
		if err != nil {
			continue // the ca says what is wrong with it
		}
		if err := addKeys(known, fmt.Sprintf("cluster %s (ConfigMap %s)", m.Data[clusterkeys.NameKey], m.Name), keys); err != nil {
			return nil, err
		}
	}
	p.Cluster.Namespaces, p.Cluster.Nomad = want.Namespaces, want.Rules
	if p.before == nil {
		p.ConfigMap = nameOf(want.Name)
	} else {
		p.ConfigMap = p.before.Name
		before, err := clusterkeys.Parse(p.before.Data)
		if err != nil && want.Namespaces == nil {
			return nil, fmt.Errorf("ConfigMap %s/%s, which is of the cluster already, is not in order, so that its rule cannot be kept: %w; state "+
				"--namespaces ('*': all), or remove the ConfigMap", want.ControlPlane, p.before.Name, err)
		}
		if err == nil && before.OfNomad() != remote.Nomad {
			return nil, fmt.Errorf("ConfigMap %s/%s makes cluster %s one of %s; give the other one another --name, or remove the ConfigMap",
				want.ControlPlane, p.before.Name, want.Name, kindOf(before.OfNomad()))
		}
		p.IssuerBefore = before.Issuer
		if want.Rules == nil && err == nil {
			p.Cluster.Nomad = before.Nomad
		}
		if want.Namespaces == nil {
			p.Cluster.Namespaces = before.Namespaces
		}
		if want.TrustDomain == "" {
			p.Cluster.TrustDomain = before.TrustDomain
		}
		older, _ = clusterkeys.PublicKeys(before.Keys) // without keys that can be read there are none to keep
	}
	if slices.Equal(p.Cluster.Namespaces, []string{AllNamespaces}) {
		p.Cluster.Namespaces = nil
	}
	if remote.Nomad && p.Cluster.Nomad == nil {
		return nil, fmt.Errorf("--nomad-rules is required: without a rule no task of %s gets an identity", want.Name)
	}
	if err := p.addKeys(want, known, older, remote.Keys); err != nil {
		return nil, err
	}
	if err := p.Cluster.Check(); err != nil {
		return nil, err
	}
	return p, nil
}

// addKeys decides which keys are trusted, and refuses those that somebody else has.
func (p *Plan) addKeys(want Wanted, known map[string]string, older, served []jose.JSONWebKey) error {
	var set jose.JSONWebKeySet
	was := map[string]string{}
	if err := addKeys(was, "this", older); err != nil {
		return err
	}
	now := map[string]string{}
	for _, k := range served {
		sum, err := clusterkeys.Fingerprint(k)
		if err != nil {
			return err
		}
		if of := known[sum]; of != "" {
			return fmt.Errorf("the key %s of cluster %s is a key of %s, too: nobody could tell of which a token is; is --context the context of "+
				"another cluster? Otherwise give one of the two a service account key of its own (--service-account-signing-key-file of its "+
				"API server)", short(sum), want.Name, of)
		}
		state := "new"
		if was[sum] != "" {
			state = "known"
		}
		now[sum] = state
		p.Keys = append(p.Keys, Key{ID: k.KeyID, Fingerprint: sum, State: state})
		set.Keys = append(set.Keys, k)
	}
	for _, k := range older {
		sum, err := clusterkeys.Fingerprint(k)
		if err != nil {
			return err
		}
		if now[sum] != "" {
			continue
		}
		state := "old"
		sameID := slices.ContainsFunc(served, func(s jose.JSONWebKey) bool { return s.KeyID == k.KeyID })
		if want.RemoveOldKeys || known[sum] != "" || sameID {
			state = "removed"
		} else {
			set.Keys = append(set.Keys, k)
		}
		p.Keys = append(p.Keys, Key{ID: k.KeyID, Fingerprint: sum, State: state})
	}
	raw, err := json.Marshal(set)
	p.Cluster.Keys = raw
	return err
}

func addKeys(to map[string]string, of string, keys []jose.JSONWebKey) error {
	for _, k := range keys {
		sum, err := clusterkeys.Fingerprint(k)
		if err != nil {
			return err
		}
		to[sum] = of
	}
	return nil
}

func kindOf(nomad bool) string {
	if nomad {
		return "Nomad"
	}
	return "Kubernetes"
}

func short(sum string) string { return sum[:16] + "…" }

var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

// nameOf makes the name of a ConfigMap of a cluster's id.
func nameOf(cluster string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(cluster), "-"), "-")
	if name != cluster { // two ids must not become one
		sum := sha256.Sum256([]byte(cluster))
		name += "-" + hex.EncodeToString(sum[:4])
	}
	return "fairlead-remote-cluster-" + name
}

// Print says what is written, with the fingerprints of the keys.
func (p *Plan) Print(out io.Writer) {
	namespaces := "all but those of the mesh's own services"
	if p.Cluster.Namespaces != nil {
		namespaces = strings.Join(p.Cluster.Namespaces, ", ")
	}
	fmt.Fprintf(out, "cluster     %s, of %s\nissuer      %s\n", p.Cluster.Name, kindOf(p.Cluster.OfNomad()), cmp.Or(p.Cluster.Issuer, "none"))
	if p.IssuerBefore != "" && p.IssuerBefore != p.Cluster.Issuer {
		fmt.Fprintf(out, "            (before: %s, whose tokens are refused from now on)\n", p.IssuerBefore)
	}
	fmt.Fprintf(out, "identities  in the namespaces %s\n", namespaces)
	for _, r := range p.Cluster.Nomad {
		fmt.Fprintf(out, "rule        task %s of job %s in Nomad's namespace %s is %s\n", r.Task, r.Job, r.Namespace, r.Account)
	}
	if p.Cluster.TrustDomain != "" {
		fmt.Fprintf(out, "            of trust domain %s\n", p.Cluster.TrustDomain)
	}
	for _, k := range p.Keys {
		about := ""
		switch k.State {
		case "old":
			about = " (the cluster has it no more; --remove-old-keys removes it, when tokens that it has signed have expired)"
		case "removed":
			about = " (tokens that it has signed are refused from now on)"
		}
		fmt.Fprintf(out, "key         SHA-256 %s  %s%s\n", k.Fingerprint, k.State, about)
	}
}

// Changes reports whether Write would change anything.
func (p *Plan) Changes() bool {
	if p.before == nil {
		return true
	}
	data := p.Cluster.Data()
	for key, value := range data {
		if p.before.Data[key] != value {
			return true
		}
	}
	return len(data) != len(p.before.Data) || p.before.Labels[clusterkeys.Label] != "true"
}

// Write makes the ConfigMap, or updates it if nobody else has changed it since it was read.
func (p *Plan) Write(ctx context.Context, api kube.API) error {
	maps := api.CoreV1().ConfigMaps(p.namespace)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: p.ConfigMap, Namespace: p.namespace}}
	write := func(m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		return maps.Create(ctx, m, metav1.CreateOptions{})
	}
	if p.before != nil {
		m = p.before.DeepCopy()
		write = func(m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
			return maps.Update(ctx, m, metav1.UpdateOptions{})
		}
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[clusterkeys.Label], m.Data, m.BinaryData = "true", p.Cluster.Data(), nil
	_, err := write(m)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("ConfigMap %s/%s was changed meanwhile; nothing was written, run the command again: %w", p.namespace, p.ConfigMap, err)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", p.namespace, p.ConfigMap, kube.Explain(err))
	}
	return nil
}

// Existing lists the ConfigMaps of remote clusters.
func Existing(ctx context.Context, api kube.API, namespace string) ([]corev1.ConfigMap, error) {
	list, err := api.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: clusterkeys.Label + "=true"})
	if err != nil {
		return nil, fmt.Errorf("ConfigMaps of namespace %s: %w", namespace, kube.Explain(err))
	}
	return list.Items, nil
}
