package books

import "net/http"

// Book is what details stores of a book.
type Book struct {
	ID        string `json:"id"`
	Title     string `json:"title"`
	Author    string `json:"author"`
	Year      int    `json:"year"`
	Type      string `json:"type"`
	Pages     int    `json:"pages"`
	Publisher string `json:"publisher"`
	Language  string `json:"language"`
}

// DetailsAnswer is the answer to GET /details/{id}.
type DetailsAnswer struct {
	Answer
	Book
}

// stock is the shop's books; a book's id is its index.
var stock = []Book{
	{ID: "0", Title: "The Comedy of Errors", Author: "William Shakespeare", Year: 1595, Type: "paperback", Pages: 200, Publisher: "PublisherA",
		Language: "English"},
	{ID: "1", Title: "Twelfth Night", Author: "William Shakespeare", Year: 1602, Type: "paperback", Pages: 232, Publisher: "PublisherA",
		Language: "English"},
}

// find returns the book of an id.
func find(id string) (Book, bool) {
	for _, b := range stock {
		if b.ID == id {
			return b, true
		}
	}
	return Book{}, false
}

// NewDetails returns the details service.
func NewDetails(c Config) (http.Handler, error) {
	mux := newMux()
	mux.HandleFunc("GET /details/{id}", func(w http.ResponseWriter, r *http.Request) {
		book, ok := find(r.PathValue("id"))
		if !ok {
			c.fail(w, r, http.StatusNotFound, "no such book")
			return
		}
		writeJSON(w, http.StatusOK, DetailsAnswer{Answer: c.answer(r), Book: book})
	})
	return mux, nil
}
