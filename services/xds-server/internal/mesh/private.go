package mesh

import (
	"strconv"
	"strings"
)

// Global is the namespace of no client: its answers are those of all namespaces in which no object gives another one.
const Global = ""

// Private calls f for the topics whose answer for clients of the namespace may not be the Global one, because an object
// is exported to the namespace alone, or takes precedence in it. Every other topic has one answer for all namespaces,
// except those that a client's own labels, gRPC targets or Sidecar decide.
func (s *Snapshot) Private(namespace string, f func(Topic)) {
	s.private.scan(namespace+sep, func(key string, _ int) bool {
		f(parseTopic(key[len(namespace)+len(sep):]))
		return true
	})
	if namespace != Global {
		f(OwnNamespaceTopic(namespace))
	}
}

// OwnNamespaceTopic names the answer to whether a namespace is the client's own.
func OwnNamespaceTopic(namespace string) Topic { return Topic{SubjectOwnNamespace, namespace, ""} }

// IsPrivate reports whether Private names the topic.
func (s *Snapshot) IsPrivate(namespace string, t Topic) bool {
	if t.Subject == SubjectOwnNamespace {
		return t.A == namespace
	}
	_, ok := s.private.get(join(namespace, t.key()))
	return ok
}

func (t Topic) key() string { return join(strconv.Itoa(int(t.Subject)), t.A, t.B) }

func parseTopic(key string) Topic {
	subject, rest, _ := strings.Cut(key, sep)
	a, b, _ := strings.Cut(rest, sep)
	n, _ := strconv.ParseUint(subject, 10, 8) // key wrote it
	return Topic{Subject(n), a, b}
}

// countPrivate counts the objects that give topics another answer in the namespaces than the global one.
func (w *writer) countPrivate(namespaces []string, add bool, topics ...Topic) {
	for _, namespace := range namespaces {
		for _, t := range topics {
			if w.count(&w.next.private, join(namespace, t.key()), add) {
				w.private[namespace] = w.private[namespace].joined(Topics{t: {}})
			}
		}
	}
}
