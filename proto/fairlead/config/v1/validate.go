// Package configv1 is the contract by which the normalised mesh is streamed, reported on and stored.
package configv1

import (
	"errors"
	"fmt"
)

// Limits of the contract. A message beyond one is refused with INVALID_ARGUMENT before any handler sees it.
const (
	// HashSize is the length of a resource hash in bytes.
	HashSize = 16
	// MaxNameBytes bounds every name, namespace and kind.
	MaxNameBytes = 512
	// MaxDocuments bounds the files of one ApplyRequest.
	MaxDocuments = 1024
	// MaxManifestBytes bounds one manifest, patch or status.
	MaxManifestBytes = 3 << 20
	// MaxApplyBytes bounds the documents of one ApplyRequest together.
	MaxApplyBytes = 16 << 20
)

// Validate checks that exactly one message is set and that held parts are well-formed.
func (m *WatchRequest) Validate() error {
	switch v := m.GetMessage().(type) {
	case *WatchRequest_Held:
		return v.Held.Validate()
	case *WatchRequest_Hello:
		return v.Hello.Validate()
	case *WatchRequest_Ack:
		return nil
	default:
		return errors.New("message: is not set; send held, hello or ack")
	}
}

// Validate checks that there is one hash per key.
func (m *Held) Validate() error {
	if err := name("held.kind", m.GetKind(), true); err != nil {
		return err
	}
	if want := HashSize * len(m.GetKeys()); len(m.GetHashes()) != want {
		return fmt.Errorf("held.hashes: has %d bytes for %d keys; send %d bytes", len(m.GetHashes()), len(m.GetKeys()), want)
	}
	return nil
}

// Validate checks that the subscriber introduces itself.
func (m *WatchHello) Validate() error { return m.GetSubscriber().Validate() }

// Validate checks that the instance is named.
func (m *Subscriber) Validate() error {
	return name("subscriber.instance", m.GetInstance(), true)
}

// Validate checks the subscriber where one is given and the node id of every proxy.
func (m *ReportRequest) Validate() error {
	if s := m.GetSubscriber(); s != nil {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	for i, p := range m.GetProxies() {
		if err := name(fmt.Sprintf("proxies[%d].node_id", i), p.GetNodeId(), true); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks that kind and name are given.
func (m *ObjectKey) Validate() error {
	return errors.Join(
		name("key.kind", m.GetKind(), true),
		name("key.name", m.GetName(), true),
		name("key.namespace", m.GetNamespace(), false),
		name("key.api_version", m.GetApiVersion(), false),
	)
}

// Validate checks the key.
func (m *GetRequest) Validate() error { return m.GetKey().Validate() }

// Validate checks the key.
func (m *DeleteRequest) Validate() error { return m.GetKey().Validate() }

// Validate checks the size of the manifest.
func (m *CreateRequest) Validate() error { return payload("manifest", m.GetManifest()) }

// Validate checks the size of the manifest.
func (m *UpdateRequest) Validate() error { return payload("manifest", m.GetManifest()) }

// Validate checks the key and the size of the status.
func (m *UpdateStatusRequest) Validate() error {
	return errors.Join(m.GetKey().Validate(), payload("status", m.GetStatus()))
}

// Validate checks the key and the size of the patch.
func (m *PatchRequest) Validate() error {
	return errors.Join(m.GetKey().Validate(), payload("patch", m.GetPatch()))
}

// Validate checks number and size of the documents.
func (m *ApplyRequest) Validate() error {
	if n := len(m.GetDocuments()); n > MaxDocuments {
		return fmt.Errorf("documents: has %d files; send at most %d in one request", n, MaxDocuments)
	}
	total := 0
	for i, d := range m.GetDocuments() {
		if len(d.GetContent()) == 0 {
			return fmt.Errorf("documents[%d].content (%s): is empty; it is required", i, d.GetName())
		}
		if total += len(d.GetContent()); total > MaxApplyBytes {
			return fmt.Errorf("documents: with %s they have more than %d bytes; apply them in several calls", d.GetName(), MaxApplyBytes)
		}
	}
	return nil
}

func name(field, value string, required bool) error {
	switch {
	case required && value == "":
		return fmt.Errorf("%s: is empty; it is required", field)
	case len(value) > MaxNameBytes:
		return fmt.Errorf("%s: has %d bytes; at most %d are allowed", field, len(value), MaxNameBytes)
	default:
		return nil
	}
}

func payload(field string, value []byte) error {
	switch {
	case len(value) == 0:
		return fmt.Errorf("%s: is empty; it is required", field)
	case len(value) > MaxManifestBytes:
		return fmt.Errorf("%s: has %d bytes; at most %d are allowed, split it", field, len(value), MaxManifestBytes)
	default:
		return nil
	}
}
