package mesh

func (w *writer) indexPeerAuthentication(v *PeerAuthentication, add bool) {
	put(w, &w.next.peerAuthentications, add, join(v.Key.Namespace, age(v.Created), v.Key.Name), v)
	w.touch(SubjectPeerAuthentications, v.Key.Namespace, "")
	w.countRelevantLabels(v.Key.Namespace, v.Spec.GetSelector().GetMatchLabels(), add)
}

// PeerAuthentications lists the PeerAuthentications of a namespace, oldest first.
func (s *Snapshot) PeerAuthentications(namespace string) []*PeerAuthentication {
	return s.peerAuthentications.list(namespace + sep)
}

// PeerAuthenticationsTopic names the answer of PeerAuthentications.
func PeerAuthenticationsTopic(namespace string) Topic {
	return Topic{SubjectPeerAuthentications, namespace, ""}
}
