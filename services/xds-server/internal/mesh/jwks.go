package mesh

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

func (w *writer) indexJwks(e *entry, _ *configv1.Jwks, _ bool) { w.touch(SubjectJwks, e.key.Name, "") }

// Jwks returns the keys that config-watcher has fetched from a source, or why there are none; nil if it has not told.
func (s *Snapshot) Jwks(source contract.KeySource) *configv1.Jwks {
	e, ok := s.kinds[KindJwks].get(Key{Kind: KindJwks, Name: source.Name()}.path())
	if !ok {
		return nil
	}
	return e.value.(*configv1.Jwks)
}

// JwksTopic names the answer of Jwks.
func JwksTopic(source contract.KeySource) Topic { return Topic{SubjectJwks, source.Name(), ""} }
