package validate

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// ErrIgnored marks an object of a kind that the mesh does not read, such as a Deployment; see UnreadError.
var ErrIgnored = errors.New("kind is not read by the mesh")

// Identify reads an object's key and API version as far as they can be read: Kind and Name of the key may be empty.
func Identify(tree map[string]any) (key object.Key, apiVersion string) {
	apiVersion, _ = tree["apiVersion"].(string)
	key.Kind, _ = tree["kind"].(string)
	if group, _, ok := strings.Cut(apiVersion, "/"); ok {
		key.Group = group
	}
	meta, _ := tree["metadata"].(map[string]any)
	key.Name, _ = meta["name"].(string)
	if kinds.ClusterScoped(key.Group, key.Kind) {
		return key, apiVersion
	}
	key.Namespace, _ = meta["namespace"].(string)
	key.Namespace = cmp.Or(key.Namespace, kinds.DefaultNamespace)
	return key, apiVersion
}

// Document decodes and checks one object. It returns the object with warnings about fields without effect, or
// object.Problems with every problem found, or an UnreadError. The caller sets the object's Source.
func Document(doc *manifest.Document) (*object.Object, error) {
	key, apiVersion := Identify(doc.Tree)
	c := &checker{object: key.String(), namespace: key.Namespace, doc: doc}
	if key.Kind == "" || apiVersion == "" {
		c.object = ""
		field := "kind"
		if apiVersion == "" {
			field = "apiVersion"
		}
		c.fail(field, nil, "missing", "start the object with apiVersion, kind and metadata")
		return nil, c.problems.Err()
	}
	k := kinds.Find(key.Group, key.Kind)
	if k == nil {
		if meant := kinds.Mistaken(key.Group, key.Kind); meant != "" {
			c.fail("apiVersion", apiVersion, "no API version of "+key.Kind, "use "+meant)
			return nil, c.problems.Err()
		}
		if served := key.Group + "/" + kinds.RunsPodsVersion; kinds.RunsPods(key.Group, key.Kind) && apiVersion != served {
			c.fail("apiVersion", apiVersion, "version is not served for "+key.Kind, "use "+served)
			return nil, c.problems.Err()
		}
		if !kinds.OwnGroup(key.Group) && nearest.Name(key.Kind, kinds.NamesOf(key.Group)) == "" {
			return nil, unread(key, apiVersion, doc)
		}
		c.fail("kind", key.Kind, "no kind of "+cmp.Or(key.Group, apiVersion), suggestion(key.Kind, kinds.NamesOf(key.Group)))
		return nil, c.problems.Err()
	}
	if v := apiVersion[strings.IndexByte(apiVersion, '/')+1:]; !slices.Contains(k.Versions, v) {
		c.fail("apiVersion", apiVersion, "version is not served for "+k.Name, "use "+k.Canonical())
	}
	o := &object.Object{Key: key, APIVersion: apiVersion, Location: doc.Location()}
	c.meta(doc.Tree, o)
	if k.NewSpec != nil {
		c.istioBody(k, doc.Tree, o)
	} else {
		c.kubernetesBody(k, doc.Tree, o)
	}
	if o.Body != nil {
		c.run(o)
	}
	if err := c.problems.Err(); err != nil {
		return nil, err
	}
	if js, err := doc.JSON(); err == nil {
		o.Digest = digest(js, o.Location)
	}
	o.Body = kept(o)
	o.Warnings = c.warnings
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
		return nil
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

// run calls the kind's rules and turns a panic into a problem, so that no object stops the process.
func (c *checker) run(o *object.Object) {
	defer func() {
		if r := recover(); r != nil {
			c.fail("", nil, fmt.Sprintf("cannot be validated: %v", r), "report this object as a defect of Fairlead")
		}
	}()
	c.rules(o)
}

// istioTop are the top-level members of an Istio object.
var istioTop = []string{"apiVersion", "kind", "metadata", "spec", "status"}

func (c *checker) istioBody(k *kinds.Kind, tree map[string]any, o *object.Object) {
	for _, name := range sortedKeys(tree) {
		if !slices.Contains(istioTop, name) {
			c.unknown("", name, istioTop, tree)
		}
	}
	msg := k.NewSpec()
	raw := tree["spec"]
	if raw == nil {
		raw = map[string]any{}
	}
	if config, ok := raw.(map[string]any); ok && k.Name == "ProxyConfig" {
		raw = c.liftOnDemand("spec", config, "environmentVariables")
	}
	if !c.decodeSpec("spec", k.Name, raw, msg) {
		return
	}
	o.Body = msg
	c.supported(k.Name, "spec", msg.ProtoReflect())
}

// decodeSpec decodes a tree strictly into a message of the kind. If strict decoding refuses fields, it decodes the
// others. It returns false if no field is left to check.
func (c *checker) decodeSpec(path, kindName string, tree any, into proto.Message) bool {
	before := len(c.problems)
	c.strictMessage(path, tree, into.ProtoReflect().Descriptor())
	refused := len(c.problems) > before
	tree, usable := c.repair(path, tree, into.ProtoReflect().Descriptor(), before)
	if !usable {
		return false
	}
	js, err := manifest.AppendJSON(nil, tree)
	if err == nil {
		// The types' own decoder, as in Istio: it accepts durations in Go's form ("10ms") as well as in protobuf's.
		err = json.Unmarshal(js, into)
	}
	if err != nil && !refused {
		c.fail(path, nil, "cannot be decoded: "+cleanProtoError(err), "see Istio's reference of "+kindName)
	}
	return err == nil
}

// cleanProtoError removes the position in the re-encoded JSON and the spaces that protobuf varies on purpose.
func cleanProtoError(err error) string {
	msg := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\u00a0", " ")), " ")
	msg = strings.TrimPrefix(msg, "proto: ")
	if strings.HasPrefix(msg, "(line ") {
		if i := strings.Index(msg, "): "); i >= 0 {
			msg = msg[i+3:]
		}
	}
	return msg
}

func (c *checker) kubernetesBody(k *kinds.Kind, tree map[string]any, o *object.Object) {
	js, err := c.doc.JSON()
	if len(c.problems) > 0 {
		// Problems of the metadata have been reported.
		tree = maps.Clone(tree)
		delete(tree, "metadata")
		js, err = manifest.AppendJSON(nil, tree)
	}
	if err != nil {
		c.fail("", nil, "cannot be decoded: "+err.Error(), "")
		return
	}
	out := k.NewBody()
	strict, err := kjson.UnmarshalStrict(js, out)
	if err != nil {
		c.fail("", nil, "cannot be decoded: "+strings.TrimPrefix(err.Error(), "json: "), "see Kubernetes' reference of "+k.Name)
		return
	}
	before := len(c.problems)
	for _, s := range strict {
		c.strictKubernetes(s.Error(), out, tree)
	}
	if c.leaveOut("", before) {
		o.Body = out
	}
}

// Digest hashes an object and its location.
func Digest(tree map[string]any, location string) [16]byte {
	js, err := manifest.AppendJSON(nil, tree)
	if err != nil {
		return [16]byte{}
	}
	return digest(js, location)
}

func digest(js []byte, location string) [16]byte {
	h := sha256.New()
	h.Write(js)
	h.Write([]byte{0})
	h.Write([]byte(location))
	return [16]byte(h.Sum(nil)[:16])
}

func parseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }
