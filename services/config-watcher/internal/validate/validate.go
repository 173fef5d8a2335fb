// Package validate judges objects of Kubernetes' and Istio's kinds: it decodes them strictly (package decode) and
// checks every field by Istio's own rules, which are in one package for each API group below it. All configuration
// passes it: the sources, the config API (package storeapi) and the webhook (package admission) call Document for each
// object, or Typed for one that client-go has decoded; `config-watcher validate` calls it through package offline. A
// new kind is a row of kinds.table, a case in Check of its group, and a file there. The package has no state and does
// no I/O.
package validate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	"fairlead.dev/services/config-watcher/internal/validate/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
	"fairlead.dev/services/config-watcher/internal/validate/support"
)

// ErrIgnored marks an object of a kind that the mesh does not read, such as a Deployment; see UnreadError.
var ErrIgnored = errors.New("kind is not read by the mesh")

// Document decodes and checks one object. It returns the object with warnings about fields without effect, or
// object.Problems with every problem found, or an UnreadError. The caller sets the object's Source.
func Document(doc *manifest.Document) (*object.Object, error) { return decoded(doc, false) }

// Served is Document for an object that an API server has accepted. Of a kind of the Gateway API, whose definitions may
// be of another release there, only the rules are applied that the definitions do not have, and unknown fields are left
// out with a warning.
func Served(doc *manifest.Document) (*object.Object, error) { return decoded(doc, true) }

func decoded(doc *manifest.Document, served bool) (*object.Object, error) {
	key, apiVersion := decode.Identify(doc.Tree)
	d := &decode.Decoder{Verdict: &decode.Verdict{Object: key.String(), Doc: doc}, Beside: ondemand.Beside}
	c := &check.Checker{Verdict: d.Verdict, Namespace: key.Namespace}
	if key.Kind == "" || apiVersion == "" {
		c.Object = ""
		field := "kind"
		if apiVersion == "" {
			field = "apiVersion"
		}
		c.Fail(field, nil, "missing", "start the object with apiVersion, kind and metadata")
		return nil, c.Problems.Err()
	}
	k := kinds.Find(key.Group, key.Kind)
	if k == nil {
		if meant := kinds.Mistaken(key.Group, key.Kind); meant != "" {
			c.Fail("apiVersion", apiVersion, "no API version of "+key.Kind, "use "+meant)
			return nil, c.Problems.Err()
		}
		if served := key.Group + "/" + kinds.RunsPodsVersion; kinds.RunsPods(key.Group, key.Kind) && apiVersion != served {
			c.Fail("apiVersion", apiVersion, "version is not served for "+key.Kind, "use "+served)
			return nil, c.Problems.Err()
		}
		if !kinds.OwnGroup(key.Group) && nearest.Name(key.Kind, kinds.NamesOf(key.Group)) == "" {
			return nil, unread(key, apiVersion, doc)
		}
		c.Fail("kind", key.Kind, "no kind of "+cmp.Or(key.Group, apiVersion), decode.Suggest(key.Kind, kinds.NamesOf(key.Group)))
		return nil, c.Problems.Err()
	}
	version := apiVersion[strings.IndexByte(apiVersion, '/')+1:]
	if !slices.Contains(k.Versions, version) {
		c.Fail("apiVersion", apiVersion, "version is not served for "+k.Name, "use "+k.Canonical())
	}
	o := &object.Object{Key: key, APIVersion: apiVersion, Location: doc.Location()}
	metadata(c, d, o)
	if k.NewSpec != nil {
		spec(d, k, o)
	} else if body := k.NewBody(); decodeBody(d, k, version, served, body) {
		o.Body = body
	}
	if o.Body != nil {
		rules(c, o)
	}
	if err := c.Problems.Err(); err != nil {
		return nil, err
	}
	if js, err := doc.JSON(); err == nil {
		o.Digest = digest(js, o.Location)
	}
	o.Body = kept(o)
	o.Warnings = c.Warnings
	return o, nil
}

// decodeBody decodes an object of a Kubernetes kind. It returns false if there is nothing to check.
func decodeBody(d *decode.Decoder, k *kinds.Kind, version string, served bool, into any) (usable bool) {
	if k.Group == kinds.GroupGatewayAPI {
		return gatewayapi.Decode(d, k.Name, version, served, into)
	}
	return d.Body(k.Name, into)
}

// spec decodes the spec of an object of Istio's kinds.
func spec(d *decode.Decoder, k *kinds.Kind, o *object.Object) {
	tree := d.Doc.Tree
	d.Members("", tree, decode.Top)
	raw := tree["spec"]
	if raw == nil {
		raw = map[string]any{}
	}
	if config, ok := raw.(map[string]any); ok && k.Name == "ProxyConfig" {
		raw = ondemand.Lift(d.Verdict, "spec", config, "environmentVariables")
	}
	if msg := k.NewSpec(); d.Spec("spec", k.Name, raw, msg) {
		o.Body = msg
		support.Check(d.Verdict, k.Name, "spec", msg.ProtoReflect())
	}
}

// Typed checks an object of a Kubernetes kind that a client has decoded, and returns the same as Document for its
// manifest, except for the digest. A field that this version does not know is no mistake here, because a newer API
// server may send it. The result keeps body; the caller must not change it and sets the result's Source.
func Typed(group, name string, body metav1.Object) (*object.Object, error) {
	k := kinds.Find(group, name)
	if k == nil || k.NewBody == nil {
		return nil, fmt.Errorf("%s %s is no kind of Kubernetes that the mesh reads", group, name)
	}
	o := &object.Object{
		Key: object.Key{Group: group, Kind: name, Namespace: body.GetNamespace(), Name: body.GetName()}, APIVersion: k.Canonical(),
		Labels: body.GetLabels(), Annotations: body.GetAnnotations(), Created: body.GetCreationTimestamp().Time, Generation: body.GetGeneration(),
		Body: body,
	}
	c := &check.Checker{Verdict: &decode.Verdict{Object: o.Key.String()}, Namespace: o.Key.Namespace}
	rules(c, o)
	if err := c.Problems.Err(); err != nil {
		return nil, err
	}
	o.Body, o.Warnings = kept(o), c.Warnings
	digest, err := digestOf(o)
	if err != nil {
		return nil, object.Problems{{Object: o.Key.String(), Reason: "cannot be encoded: " + err.Error(),
			Remedy: "report this object as a defect of Fairlead"}}
	}
	o.Digest = digest
	return o, nil
}

// kept returns the part of a valid object's body that the mesh reads, see object.Object.Body.
func kept(o *object.Object) any {
	switch b := o.Body.(type) {
	case *corev1.Pod:
		return object.PodOf(b)
	case *corev1.ConfigMap:
		if kinds.IsMeshConfig(o.Key) {
			return b
		}
		if authority := object.AuthorityOf(b); authority != nil {
			return authority
		}
		return object.OverlaysOf(b)
	case *corev1.Secret:
		if credential := object.CredentialOf(b); credential != nil {
			return credential
		}
		return nil
	case *object.IdentityBan:
		return object.BanOf(b)
	case *corev1.Node:
		return object.NodeOf(b)
	case *corev1.ServiceAccount, *corev1.Namespace:
		return nil
	default:
		return b
	}
}
