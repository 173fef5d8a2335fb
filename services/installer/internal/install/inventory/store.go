package inventory

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
)

const (
	// Label is on the Secrets of a record: "head" on the one that names the others, "chunk" on those.
	Label = "install.fairlead.dev/inventory"
	// Mark is the label of a Namespace whose records count. Nobody but an administrator labels Namespaces.
	Mark = "install.fairlead.dev/installation"
	// RevisionLabel has the revision.
	RevisionLabel = "install.fairlead.dev/revision"
	// NameLabel has the name of an installation beside the revision's own.
	NameLabel = "install.fairlead.dev/name"
	// prefix begins the names of the Secrets.
	prefix = "fairlead-installation-"
	// secretType is the type of the Secrets.
	secretType = "install.fairlead.dev/inventory" //nolint:gosec // a type, no secret
	// chunkBytes bounds what one Secret holds; the API server takes a MiB.
	chunkBytes = 512 << 10
	// maxChunks bounds a record, compressed, and maxBytes the same uncompressed.
	maxChunks = 8
	maxBytes  = 64 << 20
	// sumLength is how much of the hash is in the names of chunks.
	sumLength = 12
)

func secretID(namespace, name string) cluster.ID {
	return cluster.ID{Version: "v1", Kind: "Secret", Namespace: namespace, Name: name}
}

func headID(namespace, key string) cluster.ID { return secretID(namespace, prefix+key) }

// encode returns the record as compressed JSON: the same bytes for the same record.
func (r *Record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if b.Len() > maxChunks*chunkBytes || len(text) > maxBytes {
		return nil, fmt.Errorf("the inventory of revision %s takes %d bytes, %d compressed; %d and %d are the most that are kept in the "+
			"cluster: make the IstioOperator smaller",
			r.Revision, len(text), b.Len(), maxBytes, maxChunks*chunkBytes)
	}
	return b.Bytes(), nil
}

func (r *Record) decode(text []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxBytes+1))
	if err != nil {
		return err
	}
	if len(plain) > maxBytes {
		return fmt.Errorf("it is longer than %d bytes", maxBytes)
	}
	// Numbers stay as they were written.
	d := json.NewDecoder(bytes.NewReader(plain))
	d.UseNumber()
	return d.Decode(r)
}

// store writes the chunks after the first, then the head with the first, and deletes the chunks of the head before. The
// head decides: whoever reads it finds a whole record, the old one or the new one.
func store(ctx context.Context, c *cluster.Client, r *Record, text []byte) (*unstructured.Unstructured, error) {
	hash := sha256.Sum256(text)
	sum := hex.EncodeToString(hash[:])
	chunks := 1 + (len(text)-1)/chunkBytes
	part := func(i int) []byte { return text[i*chunkBytes : min(len(text), (i+1)*chunkBytes)] }
	for i := 1; i < chunks; i++ {
		_, err := c.Put(ctx, secret(r, chunkName(r.key(), sum, i), "chunk", map[string][]byte{"record": part(i)}))
		if err != nil && !apierrors.IsAlreadyExists(err) { // one that is there has the same hash
			return nil, err
		}
	}
	head := secret(r, prefix+r.key(), "head",
		map[string][]byte{"record": part(0), "sum": []byte(sum), "chunks": []byte(strconv.Itoa(chunks))})
	if r.head != nil {
		head.SetResourceVersion(r.head.GetResourceVersion())
	}
	head, err := c.Put(ctx, head)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || r.head != nil && apierrors.IsNotFound(err) {
		return nil, errRace(r)
	}
	if err != nil {
		return nil, err
	}
	if r.head != nil {
		now := map[string]bool{}
		for _, name := range chunkNames(head) {
			now[name] = true
		}
		for _, name := range chunkNames(r.head) {
			if now[name] {
				continue
			}
			if err := c.Delete(ctx, secretID(r.Namespace, name), ""); err != nil {
				return nil, err
			}
		}
	}
	return head, nil
}

func chunkName(key, sum string, i int) string {
	return fmt.Sprintf("%s%s-%s-%d", prefix, key, sum[:sumLength], i)
}

// chunkNames are the names of the Secrets that a head names.
func chunkNames(head *unstructured.Unstructured) []string {
	sum, _ := field(head, "sum")
	text, _ := field(head, "chunks")
	chunks, _ := strconv.Atoi(string(text))
	if len(sum) < sumLength || chunks > maxChunks {
		return nil
	}
	var names []string
	of := key(head.GetLabels()[RevisionLabel], head.GetLabels()[NameLabel])
	for i := 1; i < chunks; i++ {
		names = append(names, chunkName(of, string(sum), i))
	}
	return names
}

func secret(r *Record, name, part string, data map[string][]byte) *unstructured.Unstructured {
	encoded := map[string]any{}
	for k, v := range data {
		encoded[k] = base64.StdEncoding.EncodeToString(v)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "type": secretType, "data": encoded}}
	u.SetName(name)
	u.SetNamespace(r.Namespace)
	labels := map[string]string{Label: part, RevisionLabel: r.Revision}
	if r.Name != "" {
		labels[NameLabel] = r.Name
	}
	u.SetLabels(labels)
	return u
}

// field returns a field of a Secret's data.
func field(u *unstructured.Unstructured, name string) ([]byte, error) {
	text, ok, err := unstructured.NestedString(u.Object, "data", name)
	if err != nil || !ok {
		return nil, fmt.Errorf("data.%s is missing", name)
	}
	return base64.StdEncoding.DecodeString(text)
}

// List returns the records of the namespaces that an administrator controls, sorted by namespace and revision: the
// system namespace, those whose Namespace has the label Mark, which Save sets, and those that the caller names, because
// an administrator has. Whoever may write Secrets in another namespace installs nothing by that.
func List(ctx context.Context, c *cluster.Client, named ...string) ([]*Record, error) {
	counted, err := counted(ctx, c, named)
	if err != nil {
		return nil, err
	}
	var all []*Record
	for _, namespace := range slices.Sorted(maps.Keys(counted)) {
		records, err := In(ctx, c, namespace)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	return all, nil
}

// counted are the namespaces whose records count.
func counted(ctx context.Context, c *cluster.Client, named []string) (map[string]bool, error) {
	counted := map[string]bool{contract.SystemNamespace: true}
	for _, namespace := range named {
		counted[namespace] = true
	}
	marked, err := c.List(ctx, namespaceID(""), metav1.ListOptions{LabelSelector: Mark + "=true"})
	if err != nil && !apierrors.IsForbidden(err) { // who may not list namespaces names the one that is meant
		return nil, fmt.Errorf("the namespaces of installations have the label %s, and cannot be listed: %w", Mark, err)
	}
	for _, n := range marked {
		counted[n.GetName()] = true
	}
	delete(counted, "")
	return counted, nil
}

// In returns the records of a namespace, which an administrator has named, sorted by revision.
func In(ctx context.Context, c *cluster.Client, namespace string) ([]*Record, error) {
	heads, err := c.List(ctx, secretID(namespace, ""), metav1.ListOptions{LabelSelector: Label + "=head"})
	if err != nil {
		return nil, fmt.Errorf("the inventories of installations are Secrets with the label %s, which cannot be listed: %w", Label, err)
	}
	var all []*Record
	for i := range heads {
		r, err := read(ctx, c, &heads[i])
		if err != nil {
			return nil, fmt.Errorf("%s, the inventory of an installation, cannot be read: %w; restore it, or delete it and install again, after "+
				"which what is to be pruned is not known",
				cluster.Of(&heads[i]), err)
		}
		all = append(all, r)
	}
	return all, nil
}

// maxForeign is how many Secrets Foreign looks at.
const maxForeign = 20

// Foreign says which Secrets look like records that List, with the same namespaces, does not count; a few of them, if
// there are many. They are not read.
func Foreign(ctx context.Context, c *cluster.Client, named ...string) []string {
	counted, err := counted(ctx, c, named)
	if err != nil {
		return nil // List says it
	}
	resource, err := c.Resource(secretID("", ""))
	if err != nil {
		return nil
	}
	list, err := c.Dynamic().Resource(resource).List(ctx, metav1.ListOptions{LabelSelector: Label + "=head", Limit: maxForeign})
	if err != nil {
		return nil // who may not look has none to be told of
	}
	var notes []string
	for i := range list.Items {
		if head := &list.Items[i]; !counted[head.GetNamespace()] {
			notes = append(notes, fmt.Sprintf(
				"%s looks like the inventory of an installation and is not taken for one: nobody has marked its namespace. If it is one of yours, "+
					"run kubectl label namespace %s %s=true, or name the namespace with -i",
				cluster.Of(head), head.GetNamespace(), Mark))
		}
	}
	return notes
}

// mark marks the namespace of a record, so that List finds the record.
func mark(ctx context.Context, c *cluster.Client, namespace string) error {
	if namespace == contract.SystemNamespace {
		return nil
	}
	live, err := c.Get(ctx, namespaceID(namespace))
	if err != nil || live == nil || live.GetLabels()[Mark] == "true" {
		return err
	}
	if err := label(ctx, c, namespace, `"true"`); err != nil {
		return fmt.Errorf("namespace %s cannot get the label %s, without which the inventory in it does not count: %w", namespace, Mark, err)
	}
	return nil
}

// Tidy takes the mark from namespaces that have no record, which an interrupted Remove leaves.
func Tidy(ctx context.Context, c *cluster.Client) error {
	marked, err := c.List(ctx, namespaceID(""), metav1.ListOptions{LabelSelector: Mark + "=true"})
	for _, n := range marked {
		err = errors.Join(err, unmark(ctx, c, n.GetName()))
	}
	return err
}

// unmark takes the mark from a namespace that has no record any more.
func unmark(ctx context.Context, c *cluster.Client, namespace string) error {
	live, err := c.Get(ctx, namespaceID(namespace))
	if err != nil || live == nil || live.GetLabels()[Mark] == "" {
		return err
	}
	heads, err := c.List(ctx, secretID(namespace, ""), metav1.ListOptions{LabelSelector: Label + "=head"})
	if err != nil || len(heads) > 0 {
		return err
	}
	return label(ctx, c, namespace, "null")
}

func label(ctx context.Context, c *cluster.Client, namespace, value string) error {
	resource, err := c.Resource(namespaceID(namespace))
	if err != nil {
		return err
	}
	patch := []byte(`{"metadata":{"labels":{"` + Mark + `":` + value + `}}}`)
	_, err = c.Dynamic().Resource(resource).Patch(ctx, namespace, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: cluster.Manager})
	if apierrors.IsNotFound(err) {
		return nil // it is gone, and so are its records
	}
	return err
}

func namespaceID(name string) cluster.ID {
	return cluster.ID{Version: "v1", Kind: "Namespace", Name: name}
}

func read(ctx context.Context, c *cluster.Client, head *unstructured.Unstructured) (*Record, error) {
	want, err := field(head, "sum")
	if err != nil {
		return nil, err
	}
	text, err := field(head, "record")
	if err != nil {
		return nil, err
	}
	for _, name := range chunkNames(head) {
		u, err := c.Get(ctx, secretID(head.GetNamespace(), name))
		if err != nil {
			return nil, err
		}
		if u == nil {
			return nil, fmt.Errorf("secret %s is missing", name)
		}
		more, err := field(u, "record")
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", name, err)
		}
		text = append(text, more...)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != string(want) {
		return nil, errors.New("its hash is wrong")
	}
	r := &Record{}
	if err := r.decode(text); err != nil {
		return nil, err
	}
	if labels := head.GetLabels(); head.GetName() != prefix+r.key() || head.GetNamespace() != r.Namespace ||
		labels[RevisionLabel] != r.Revision || labels[NameLabel] != r.Name {
		return nil, fmt.Errorf("it is of %s", r)
	}
	r.head, r.text = head, text
	return r, nil
}
