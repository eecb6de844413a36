"""A tiny SQuAD file."""


def answers(context, *texts):
    return [{"text": text, "answer_start": context.index(text)} for text in texts]


ONE = "Ann lives in Rome. She is old.\nShe is old. She met Dr. Who in May."
TWO = " She is old. Bob is not. "
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "People",
            "paragraphs": [
                {
                    "context": ONE,
                    "qas": [
                        # Two answers in the first sentence, one in the last.
                        {"id": "a", "question": "Where?", "answers": answers(ONE, "Rome", "in Rome", "in May")},
                        {"id": "b", "question": "How is she?", "answers": answers(ONE, "old")},
                        # The same string but for white space is another question.
                        {"id": "c", "question": "Where? ", "answers": answers(ONE, "Dr. Who")},
                    ],
                },
                {"context": "Nobody asks about this. It is no candidate.", "qas": []},
            ],
        },
        {
            "title": "More",
            "paragraphs": [
                {
                    "context": TWO,
                    "qas": [
                        {"id": "d", "question": "Where?", "answers": answers(TWO, "Bob", " Bob")},
                        {"id": "e", "question": "Nowhere?", "answers": []},
                    ],
                }
            ],
        },
    ],
}
